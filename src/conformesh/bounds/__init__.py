"""Error bounds that devices can compute: what turns an approximate number into a certificate."""
