"""See a run: traces, a live page in a browser, and reports that need no server.

`recording` and `online` observe runs, `meshes` watches running nodes, `trace` is the document that all of them produce,
`report` and `server` show it, and `page/` holds the page itself. What a node's status means is decided in `mesh.node`;
figures for papers are in `plots`. May import everything except `lab` and `cli`.
"""

from conformesh.view.online import OnlineRecorder
from conformesh.view.recording import Recorder
from conformesh.view.trace import Trace

__all__ = ["OnlineRecorder", "Recorder", "Trace"]
