"""See a run: traces, a live page in a browser, and reports that need no server.

`recording` and `online` observe runs, `mesh_watch` watches running nodes, `trace` is the document that all of them
produce (bounds in it are rounded on the safe side), `report` and `server` show it, `guard` keeps strangers out, and
`page/` is the page itself. What a node's status means is decided in `mesh.node`; figures for papers are in `plots`. May
import everything except `lab` and `cli`.
"""

from conformesh.view.online import OnlineRecorder
from conformesh.view.recording import Recorder
from conformesh.view.trace import Trace

__all__ = ["OnlineRecorder", "Recorder", "Trace"]
