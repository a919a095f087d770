"""What the local service of a node and its client both know: the paths, the content type and the largest body.

Light on purpose: the client imports it too.
"""

from __future__ import annotations

THRESHOLD, CERTIFICATE, CALIBRATION, MESH = "/threshold", "/certificate", "/calibration", "/mesh"
HEALTH, STATUS, METRICS, OPENAPI = "/health", "/status", "/metrics", "/openapi.json"
PREDICT, EVALUATE, RECALIBRATE, ROSTER = "/predict", "/evaluate", "/recalibrate", "/roster"
ONLINE, OBSERVE, PREDICT_NEXT = "/online", "/observe", "/predict_next"
VERBS = {
    THRESHOLD: "GET",
    CERTIFICATE: "GET",
    CALIBRATION: "GET",
    HEALTH: "GET",
    STATUS: "GET",
    MESH: "GET",
    METRICS: "GET",
    OPENAPI: "GET",
    PREDICT: "POST",
    EVALUATE: "POST",
    RECALIBRATE: "POST",
    ROSTER: "POST",
    ONLINE: "GET",
    OBSERVE: "POST",
    PREDICT_NEXT: "POST",
}
JSON = "application/json"
LARGEST_BODY = 16 * 2**20  # bytes: a table of 10,000 rows with 100 probabilities as text, about
MONITORING = (HEALTH, STATUS, METRICS, MESH)  # answered also when all places for connections are taken
