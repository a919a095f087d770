"""What a mesh is made of before it runs: folders, certificates, scores, and checks of all three.

`device_config`  what a device knows
`device_toml`    the same in a readable file
`certificates`   an authority, and the certificates it signs
`authority`      what was signed last, and how a change survives a crash
`key_pair`       whether a device's certificate is what its neighbours will let in
`folders`        make a mesh, add, revoke and renew a device
`local_scores`   a device's own scores, and how one file is spread over the folders
`checking`       what one folder looks like before it starts, and whether several agree
`reach`          whether a neighbour answers, and as whom
"""

# here, so that the command line can name them without loading anything
ON_LOST = ("fail", "continue")
MODES = ("rounds", "anytime")
