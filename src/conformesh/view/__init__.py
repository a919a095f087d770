"""See a run: traces, the live page in a browser, and reports that need no server."""

from conformesh.view.online import OnlineRecorder
from conformesh.view.recording import Recorder
from conformesh.view.trace import Trace

__all__ = ["OnlineRecorder", "Recorder", "Trace"]
