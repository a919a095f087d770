"""How far a method may be from the truth, computed beforehand."""
