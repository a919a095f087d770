"""What a node's local service and its client both know: the routes, the form of a body and its largest size.

Light on purpose: the client imports it too.
"""

from __future__ import annotations

THRESHOLD, CERTIFICATE, CALIBRATION, MESH = "/threshold", "/certificate", "/calibration", "/mesh"
HEALTH, STATUS, METRICS, OPENAPI = "/health", "/status", "/metrics", "/openapi.json"
PREDICT, RECALIBRATE, ROSTER = "/predict", "/recalibrate", "/roster"
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
    RECALIBRATE: "POST",
    ROSTER: "POST",
    ONLINE: "GET",
    OBSERVE: "POST",
    PREDICT_NEXT: "POST",
}
JSON = "application/json"
LARGEST_BODY = 16 * 2**20  # bytes
MONITORING = (HEALTH, STATUS, METRICS, MESH)  # what is answered also when all places for connections are taken
