"""Privacy: differential privacy by noise in shares, privacy accounts, and reports of who learns what.

What lives here: public grids (`grids`), noise (`noise`) and what it costs in coverage (`inflation`), the noisy
histogram from which thresholds and quantiles are read (`histogram`, `rank_errors`), the account of a device on its disk
(`account`), exposure reports (`exposure`) and the attack that they are tested with (`gossip_attack`).

What does not: the protocol that adds up masked numbers (`protocols.p_dcp`, `protocols.masks`), and what each method
reveals (`protocols.method_exposure`). May import the layers below it, up to `graph` and `guarantee`; not `protocols`.
"""
