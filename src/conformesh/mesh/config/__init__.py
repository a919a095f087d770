"""What a mesh consists of before it runs: folders, settings, certificates, rosters, scores, and checks of them.

Here: how these are made, read, changed and checked. Not here: anything that runs (`mesh.node`), answers over HTTP
(`mesh.http`) or sends messages (`mesh.link`), and the rules of membership (`peer`). It may import `common`, `files`,
`graph`, `kernels`, `guarantee`, `results`, `methods`, `protocols`, `pipeline`, `online`, `scores`, `peer`, and
`mesh.folder_lock`.

`settings`        every setting of a device, with its help, default and range
`device_config`   the configuration of a device, checked
`device_toml`     the same as a readable file
`endpoints`       host:port, and the file of hosts
`roster`          the devices of a mesh, numbered and signed
`certificates`    an authority, and the certificates it signs; `certificate_names` and `key_pair` check them
`signing`, `seal` signatures of rosters, and of entries of a device
`authority`       what was signed last, and how a change survives a crash
`folders`         make a mesh; add, revoke and renew a device
`local_scores`    the scores of a device, and how one file is split over the folders
`labelled_rows`   the labelled outputs of a device whose scores adapt to them
`epochs`          which epoch of a private mesh has closed
`checks`, `reach` whether folders are ready and agree, and whether neighbours answer
"""

# In this light module, so that the command line can list the choices without loading the settings.
ON_LOST = ("fail", "continue")
MODES = ("rounds", "asynchronous")
