"""Planning: simulate every method on drawn scores, report what each costs, and recommend one.

`planner` holds `plan` and its table, `measurement` runs one way on the simulator and adds up its cost, `networks` picks
the network to simulate, `link` turns bits and rounds into time, `plots` draws the plan. All figures are measured in
runs of the methods themselves; no cost formula is kept here.
"""
