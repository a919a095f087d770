"""A device at work: from its folder to a certified threshold, once or for as long as it stays up.

`main` starts the process and `node` is its life. Its parts:

protocol    `calibration_run` makes the device of `peer`, `run_driver` runs it over links, `run_request` stores requests
files       `node_files` looks at all of them: `file_watch`, `disk_watch`, `privacy_watch`, `membership` (the roster)
status      `status` (the Structs), `state` and `neighbour_table` (what is counted), `status_updates`, `health` (the
            only health rule)
heartbeat   `heartbeat` over the links, `heartbeat_table` without I/O
storage     `certified_result`, `result_store`
online      `online`, `online_records` (the journal), `drift_alarm`
logging     `logs`, `telemetry`

What programs see over HTTP is in `mesh.http`. It imports `node.status`, `node.state` and `node.health`, and `node.node`
imports its server.
"""
