"""The algorithms: each is a generator that yields messages and receives the answers of the neighbours.

What lives here: one module for each method (`e_dcp`, `q_dcp`, `h_dcp`, `r_dcp`, `p_dcp`, `fedcp_qq`, `wfcp`,
`baselines`), the building blocks they share, the messages that may be sent (`messages`, `message_checks`), what they
cost (`ledger`), simulated faults and attacks, and what each method reveals (`method_exposure`).

What does not: sockets, clocks, random numbers of a protocol's own, files. `engines` and `peer` run the generators,
`pipeline` turns a guarantee into problems for them, `methods` has the table of methods.

May import the layers below it, up to `privacy`, `results` and `table`; never what runs it.

======================  ==========================================================================================
E-DCP                   `e_dcp` (counts at thresholds), `waves` (over a tree), `top_k` and `merged_scores` (flooding),
                        `e_dcp_entries` (asynchronous mode), `rank_counts` (p-values, false discovery rate)
Q-DCP                   `q_dcp`, `quantile_average` (s0), `relaxed_admm` and `loss_tolerant_count` (lost messages)
H-DCP                   `h_dcp`, `averaging_schemes`, `h_dcp_projection`, `projection_gossip`, `row_combination`
R-DCP                   `r_dcp`, `histogram_reports`, `trimming`, `attacks`
P-DCP                   `p_dcp`, `masks`; noise and accounts are in `privacy`
groups                  `groups`, `group_regression`
sums over all devices   `aggregate`, `tree`, `flood`, `gather`, `size_agreement`
agreement               `consensus`, `quantiser`, `spectrum_estimation`
messages                `messages`, `message_checks`, `wire_format`, `ledger`, `faults`
data                    `block` (the local devices and the answers), `options`
======================  ==========================================================================================
"""
