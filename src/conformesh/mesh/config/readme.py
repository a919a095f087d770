"""The README of a mesh: for the person who carries folders to machines."""

from __future__ import annotations

from conformesh.mesh.config.device_config import DeviceConfig

START_COMMAND = "conformesh node"  # the command that runs one device


def mesh_readme(config: DeviceConfig) -> str:
    """Return what to copy where, how to start and what never to copy."""
    places = "\n".join(f"| `{name}` | {config.endpoints[name]} |" for name in config.devices)
    return f"""# A mesh of {len(config.devices)} devices

One folder per device. The devices agree on a threshold by `{config.run.method}` at alpha {config.guarantee.alpha},
each talking only to its neighbours. The files of scores stay where they are; only the few numbers of the method travel.

## What to copy where

Copy each folder, whole, to the machine of its device, and to no other machine:

| folder | reached at |
| --- | --- |
{places}

{_what_to_put(config)}.
Or spread one file over all folders here, before copying, with `conformesh mesh init ... --scores FILE`.

{_INSECURE if config.security.insecure else _SECURE}
## How to start

On each machine, in any order:

    conformesh mesh check device-folder
    {START_COMMAND} device-folder

On one machine, for all folders: `conformesh mesh check .` in this folder.

## When something changes

- A new device: `conformesh mesh add . NAME --neighbour DEVICE --host HOST:PORT`.
- A device that is lost, stolen or retired: `conformesh mesh revoke . NAME`.
{"" if config.security.insecure else _CERTIFICATES}
After each of these hand the new `roster.json` in this folder to **any one** device that runs: `conformesh mesh hand
roster.json device-folder` on its machine, or copy it over the `roster.json` in its folder. It passes it on to the
others, and nobody needs to be started again. A device that was off for all that time gets it from its neighbours when
it comes back; if none of them is its neighbour any more, hand it to it as well. `conformesh mesh check FOLDER FOLDER
...` names what differs between folders.
"""


def _what_to_put(config: DeviceConfig) -> str:
    """Return what belongs into the file of scores."""
    file = config.scores.file
    if config.guarantee.adapt is None:
        return f"Put the device's own scores into its `{file}` (a line `device,score`, then one line per score)"
    columns = ", ".join(f"`{name}`" for name in (config.scores.label_column, *config.scores.output_columns[:3]))
    more = ", ..." if len(config.scores.output_columns) > 3 else ""
    return (
        f"Put the device's own labelled outputs into its `{file}`:\ncolumns {columns}{more}, and one line per example"
    )


_CERTIFICATES = """\
- A certificate that expires soon: `conformesh mesh renew . NAME`, and copy its `device.pem` and `device.key`. No new
  roster is needed.
- A key that was stolen: `conformesh mesh revoke . NAME --certificate`, copy the new `device.pem` and `device.key` to
  the device, and hand out the roster. The device goes on under its name; the thief is shut out.
"""

_SECURE = """## What never to copy

- `ca/ca.key`. Whoever has it can make devices of this mesh. It stays in `ca/`, with the person who runs the mesh.
  After every change, keep a copy of `ca/` and `authority.json` in a safe place.
- A `device.key` to any machine but its own. Once it is copied, the one here may be deleted.
"""

_INSECURE = """## Without certificates

This mesh was made with `--insecure`: links are not encrypted and anybody who reaches a port can take part. Use it only
for experiments on one machine or in a closed network.
"""
