r"""LaTeX of docstrings and pages to MathML, so that the site shows equations without a script and without a network.

Browsers draw MathML themselves. Only what docstrings and pages use is known: an unknown command is an error that says
where to add it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from html import escape

GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "theta": "θ", "kappa": "κ"},
    **{"lambda": "λ", "mu": "μ", "nu": "ν", "pi": "π", "rho": "ρ", "varrho": "ϱ", "sigma": "σ", "tau": "τ", "phi": "φ"},
    **{"omega": "ω", "varphi": "φ"},
    **{"infty": "∞", "nabla": "∇", "dots": "…", "#": "#"},  # set as letters, without room around them
    **{"Gamma": "Γ", "Delta": "Δ", "Lambda": "Λ", "Sigma": "Σ", "Phi": "Φ"},
}
OPERATORS = {
    **{"le": "≤", "ge": "≥", "ne": "≠", "in": "∈", "sim": "∼", "to": "→", "cdot": "·", "times": "×"},
    **{"propto": "∝", "ni": "∋", "mid": "|", "top": "⊤", "leftarrow": "←"},
    **{"pm": "±", "notin": "∉"},
    **{"lceil": "⌈", "rceil": "⌉", "lfloor": "⌊", "rfloor": "⌋", "{": "{", "}": "}"},
    **{"lbrace": "{", "rbrace": "}", "langle": "⟨", "rangle": "⟩"},
}
SPACES = {",": "0.17em", ";": "0.28em", " ": "0.28em", "quad": "1em", "qquad": "2em"}
# What has its bounds below and above in a display
LIMITS = {"sum": "∑", "prod": "∏", "max": "max", "min": "min", "sup": "sup"}
FUNCTIONS = ("log", "ln", "cosh", "sinh", "arccosh")
ACCENTS = {"hat": "^", "tilde": "~", "widetilde": "~", "bar": "¯"}
FENCES = "()[]|"
RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\to", r"\leftarrow", r"\sim", r"\propto")
OPENING, CLOSING = (
    ("(", "[", r"\{", r"\lbrace", r"\lceil", r"\lfloor", r"\langle"),
    (")", "]", r"\}", r"\rbrace", r"\rceil", r"\rfloor", r"\rangle"),
)


def mathml(latex: str, *, display: bool = False) -> str:
    r"""Return the equation as a MathML element.

    >>> mathml(r"\frac{1}{n_k} \le \alpha")  # doctest: +ELLIPSIS
    '<math><mrow><mfrac><mn>1</mn><msub><mi>n</mi><mi>k</mi></msub></mfrac><mo>≤</mo><mi>α</mi></mrow></math>'
    """
    parser = _Parser(latex, display)
    row = parser.row(until="")
    return f'<math display="block">{row}</math>' if display else f"<math>{row}</math>"


def breakable(latex: str) -> str:
    r"""Return an equation that stands in a line of text, in pieces between which the line may end: after =, ≤ ...

    >>> breakable("a = b").split("<wbr>")
    ['<math><mrow><mi>a</mi><mo form="infix">=</mo></mrow></math>', '<math><mi>b</mi></math>']
    """
    parser = _Parser(latex, display=False)
    pieces, depth = [""], 0
    while token := parser.peek():
        depth += (token in OPENING) - (token in CLOSING)
        relation = token in RELATIONS and not depth
        part = parser.scripted()
        pieces[-1] += part.replace("<mo>", '<mo form="infix">') if relation and pieces[-1] else part
        if relation and pieces[-1] != part:
            pieces.append("")
    rows = [each if _is_one(each) else f"<mrow>{each}</mrow>" for each in pieces if each]
    return "<wbr>".join(f"<math>{row}</math>" for row in rows)


def _is_one(markup: str) -> bool:
    """Whether this is a single leaf, such as a letter."""
    return re.fullmatch(r"<(m[a-z]+)>[^<]*</\1>", markup) is not None


class _Parser:
    """Reads tokens from left to right; every method returns MathML."""

    def __init__(self, latex: str, display: bool) -> None:
        self.tokens = re.findall(r"\\text\{[^}]*\}|\\[A-Za-z]+|\\.|\S", latex)
        self.at = 0
        self.display = display
        self.commands: dict[str, Callable[[], str]] = {
            r"\frac": self._fraction,
            r"\tfrac": self._fraction,
            r"\sqrt": lambda: f"<msqrt>{self.argument()}</msqrt>",
            r"\mathrm": lambda: re.sub("</?m[a-z]+>", "", self.argument()).join(('<mi mathvariant="normal">', "</mi>")),
            r"\int": lambda: "<mo>∫</mo>",
            **{rf"\{name}": partial(self._function, name) for name in FUNCTIONS},
            r"\|": lambda: _operator("‖", stretches=False),
            r"\Vert": lambda: _operator("‖", stretches=False),
            r"\left": self._fenced,
        }

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("the equation ends too early: is a brace missing?")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def row(self, until: str) -> str:
        """Read atoms with their scripts up to a token, which is consumed."""
        found = []
        while self.peek() != until:
            found.append(self.scripted())
        self.at += bool(until)
        return found[0] if len(found) == 1 else f"<mrow>{''.join(found)}</mrow>"

    def argument(self) -> str:
        """Read what a command or a script applies to: a group, or one token."""
        if self.peek() == "{":
            self.at += 1
            return self.row("}")
        return self._atom(single=True)

    def scripted(self) -> str:
        """Read an atom with its subscript, superscript and primes."""
        limits = self.display and self.peek().removeprefix("\\") in LIMITS
        base, scripts = self._atom(), {}
        if primes := self._primes():
            scripts["^"] = primes
        while (mark := self.peek()) in ("_", "^") and mark not in scripts:
            self.at += 1
            scripts[mark] = self.argument()
        if not scripts:
            return base
        tag = {"_": "sub", "^": "sup", "_^": "subsup"}["".join(sorted(scripts, reverse=True))]
        if limits:
            tag = tag.replace("sub", "under").replace("sup", "over")
        parts = "".join(scripts[mark] for mark in "_^" if mark in scripts)
        return f"<m{tag}>{base}{parts}</m{tag}>"

    def _primes(self) -> str:
        signs = ""
        while self.peek() == "'":
            self.at += 1
            signs += "′"
        return f"<mo>{signs}</mo>" if signs else ""

    def _atom(self, single: bool = False) -> str:
        token = self.next()
        if token == "{":
            return self.row("}")
        if token.startswith("\\"):
            return self._command(token)
        if token.isdigit():
            while not single and (self.peek().isdigit() or self.peek() == "."):
                token += self.next()
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "+-" and (self.at < 2 or self.tokens[self.at - 2] in (*RELATIONS, *OPENING, ",", "{")):
            return _operator(token.replace("-", "−")).replace("<mo>", '<mo form="prefix">')  # a sign, not a sum
        return _operator(token.replace("-", "−").replace("*", "∗"), stretches=token not in FENCES)

    def _command(self, token: str) -> str:
        name = token[1:]
        if token.startswith(r"\text{"):
            return f"<mtext>{escape(token[6:-1].replace(' ', chr(160)))}</mtext>"
        if token in self.commands:
            return self.commands[token]()
        if name in ACCENTS:
            return f'<mover accent="true">{self.argument()}{_operator(ACCENTS[name], stretches=False)}</mover>'
        for table, tag in ((GREEK, "mi"), (OPERATORS, "mo"), (LIMITS, "mo")):
            if name in table:
                return f"<{tag}>{table[name]}</{tag}>"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"></mspace>'
        raise ValueError(f"docs/mathml.py does not know {token}; add it to one of its tables")

    def _function(self, name: str) -> str:
        """Set a name upright, with a little room after it, and before it where something stands there."""
        room = '<mspace width="0.17em"></mspace>'
        first = self.at < 2 or self.tokens[self.at - 2] in (*RELATIONS, *OPENING, ",", "{", "+", "-", "/")
        return f"{'' if first else room}<mi>{name}</mi>{room}"

    def _fraction(self) -> str:
        above = self.argument()
        return f"<mfrac>{above}{self.argument()}</mfrac>"

    def _fenced(self) -> str:
        opening = self.next().removeprefix("\\")
        inside = self.row(r"\right")
        closing = self.next().removeprefix("\\")
        return f"<mrow><mo>{opening}</mo>{inside}<mo>{closing}</mo></mrow>"


def _operator(sign: str, stretches: bool = True) -> str:
    if sign in "|‖":
        return f'<mo stretchy="false" lspace="0" rspace="0">{sign}</mo>'
    return f"<mo>{escape(sign)}</mo>" if stretches else f'<mo stretchy="false">{escape(sign)}</mo>'
