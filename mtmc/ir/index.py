"""Quasi-affine index expressions: plus, times, floor division and modulo over axes and dims.

Every expression is kept in one normal form, a polynomial with integer coefficients over *atoms* (an axis, a
declared dim, a floor division or a modulo), so that equal indices are equal values. An ``Axis`` carries its
extent (0 <= axis < extent) and a ``Dim`` is at least 1; that is all that simplification needs to prove that
a division or a modulo disappears. A general computer-algebra package is too slow here: a search rewrites
thousands of indices a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Dim:
    """A declared run-time extent, at least 1; ``limit`` is the largest value the user declared."""

    name: str
    limit: int = 2**20


@dataclass(frozen=True)
class Axis:
    """A named loop variable with ``0 <= axis < extent``."""

    name: str
    extent: Index


@dataclass(frozen=True)
class FloorDiv:
    num: Index
    den: Index


@dataclass(frozen=True)
class Mod:
    num: Index
    den: Index


Atom: TypeAlias = Axis | Dim | FloorDiv | Mod
Monomial: TypeAlias = tuple[Atom, ...]


@lru_cache(maxsize=100_000)
def _atom_key(atom: Atom) -> str:
    """A total order of atoms that does not depend on hashing."""
    match atom:
        case Axis(name, _):
            return f"b{name}:{atom.extent}"
        case Dim(name, _):
            return f"a{name}"
        case FloorDiv(num, den):
            return f"c{num}//{den}"
        case Mod(num, den):
            return f"d{num}%{den}"


@dataclass(frozen=True)
class Index:
    """A polynomial: ``terms`` maps a sorted tuple of atoms to its coefficient; no zero coefficients."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    # -- construction -------------------------------------------------------------------------------------
    @staticmethod
    def of(value: IndexLike) -> Index:
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return Index((((), value),)) if value else ZERO
        return Index((((value,), 1),))

    @staticmethod
    def _build(terms: dict[Monomial, int]) -> Index:
        kept = [(mono, coef) for mono, coef in terms.items() if coef]
        kept.sort(key=lambda term: [_atom_key(atom) for atom in term[0]])
        return Index(tuple(kept))

    # -- arithmetic ---------------------------------------------------------------------------------------
    def __add__(self, other: IndexLike) -> Index:
        terms = dict(self.terms)
        for mono, coef in Index.of(other).terms:
            terms[mono] = terms.get(mono, 0) + coef
        return _recombine(Index._build(terms))

    def __sub__(self, other: IndexLike) -> Index:
        return self + Index.of(other) * -1

    def __mul__(self, other: IndexLike) -> Index:
        return _recombine(_times(self, Index.of(other)))

    def __floordiv__(self, other: IndexLike) -> Index:
        return floordiv(self, Index.of(other))

    def __mod__(self, other: IndexLike) -> Index:
        return mod(self, Index.of(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: IndexLike) -> Index:
        return Index.of(other) - self

    # -- questions ----------------------------------------------------------------------------------------
    @cached_property
    def constant(self) -> int | None:
        """The value if this is a plain integer, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @cached_property
    def single(self) -> Axis | Dim | None:
        """The axis or dim if this is exactly one of them, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            if isinstance(atom, Axis | Dim):
                return atom
        return None

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """All axes that this index depends on."""
        found: set[Axis] = set()
        for atom in self._atoms():
            if isinstance(atom, Axis):
                found.add(atom)
        return frozenset(found)

    @cached_property
    def dims(self) -> frozenset[Dim]:
        """All declared dims in this index, those in the extents of its axes included."""
        found: set[Dim] = set()
        for atom in self._atoms():
            if isinstance(atom, Dim):
                found.add(atom)
            elif isinstance(atom, Axis):
                found |= atom.extent.dims
        return frozenset(found)

    def _atoms(self) -> Iterable[Atom]:
        for mono, _ in self.terms:
            for atom in mono:
                yield atom
                if isinstance(atom, FloorDiv | Mod):
                    yield from atom.num._atoms()
                    yield from atom.den._atoms()

    @cached_property
    def upper(self) -> Index:
        """The largest value, as an expression over dims only (an upper bound where atoms are nested)."""
        return _bound(self, largest=True)

    @cached_property
    def lower(self) -> Index:
        """The smallest value, as an expression over dims only."""
        return _bound(self, largest=False)

    def maximum(self) -> int:
        """The largest value that any declared dim allows (an upper bound, by interval arithmetic)."""
        return _interval(self)[1]

    # -- use ----------------------------------------------------------------------------------------------
    def substitute(self, mapping: Mapping[Any, Index]) -> Index:
        """Replaces axes or dims (the keys); the result is simplified again."""
        if not (self.axes | self.dims) & mapping.keys():
            return self
        total = ZERO
        for mono, coef in self.terms:
            product = Index.of(coef)
            for atom in mono:
                match atom:
                    case FloorDiv(num, den):
                        value = floordiv(num.substitute(mapping), den.substitute(mapping))
                    case Mod(num, den):
                        value = mod(num.substitute(mapping), den.substitute(mapping))
                    case Axis(name, extent) if atom not in mapping and extent.dims:
                        value = Index.of(Axis(name, extent.substitute(mapping)))
                    case _:
                        value = mapping.get(atom, Index.of(atom))
                product = product * value
            total = total + product
        return total

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value for given axis and dim values, by name; numbers and numpy arrays both work."""
        total: Any = 0
        for mono, coef in self.terms:
            product: Any = coef
            for atom in mono:
                match atom:
                    case FloorDiv(num, den):
                        product = product * (num.evaluate(env) // den.evaluate(env))
                    case Mod(num, den):
                        product = product * (num.evaluate(env) % den.evaluate(env))
                    case Axis(name, _) | Dim(name, _):
                        product = product * env[name]
            total = total + product
        return total

    def render(self, name_of: Callable[[Axis | Dim], str]) -> str:
        """Python (and Triton) source text; ``name_of`` names axes and dims."""
        if not self.terms:
            return "0"
        ordered = sorted(self.terms, key=lambda term: (not term[0], -abs(term[1])))  # large steps first
        parts: list[str] = []
        for mono, coef in ordered:
            factors = [_render_atom(atom, name_of) for atom in mono]
            if abs(coef) != 1 or not factors:
                factors.append(str(abs(coef)))
            sign = "-" if coef < 0 else "+"
            parts.append(f"{sign} {' * '.join(factors)}")
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    def __str__(self) -> str:
        return self.render(lambda atom: atom.name)

    def __repr__(self) -> str:
        return f"Index({self})"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)


IndexLike: TypeAlias = Index | Axis | Dim | int
ZERO = Index()
ONE = Index((((), 1),))


def _render_atom(atom: Atom, name_of: Callable[[Axis | Dim], str]) -> str:
    def wrapped(index: Index) -> str:
        text = index.render(name_of)
        atomic = len(index.terms) == 1 and len(index.terms[0][0]) <= 1 and index.terms[0][1] == 1
        return text if atomic or index.constant is not None else f"({text})"

    match atom:
        case FloorDiv(num, den):
            return f"({wrapped(num)} // {wrapped(den)})"
        case Mod(num, den):
            return f"({wrapped(num)} % {wrapped(den)})"
        case _:
            return name_of(atom)


def _times(left: Index, right: Index) -> Index:
    """The plain product, nothing put together."""
    terms: dict[Monomial, int] = {}
    for a_mono, a in left.terms:
        for b_mono, b in right.terms:
            mono = tuple(sorted(a_mono + b_mono, key=_atom_key))
            terms[mono] = terms.get(mono, 0) + a * b
    return Index._build(terms)


def _recombine(index: Index) -> Index:
    """Puts divided indices together again, until nothing changes: ``d * (x // d) + x % d`` is ``x``, and
    ``d * ((x // d) % e) + x % d`` is ``x % (d * e)``."""
    while (joined := _recombine_once(index)) is not None:
        index = joined
    return index


def _recombine_once(index: Index) -> Index | None:
    mods = [
        (mono, coef, position, atom)
        for mono, coef in index.terms
        for position, atom in enumerate(mono)
        if isinstance(atom, Mod)
    ]
    if not mods:
        return None
    terms = dict(index.terms)
    for mono, coef, position, atom in mods:
        factor = Index._build({mono[:position] + mono[position + 1 :]: coef})
        quotient = floordiv(atom.num, atom.den)
        partner = _times(_times(factor, atom.den), quotient)
        if partner.terms and all(terms.get(m) == c for m, c in partner.terms):
            return _exchange(index, {mono: coef, **dict(partner.terms)}, _times(factor, atom.num))
        for _, _, _, outer in mods:
            if outer.num == quotient:
                partner = _times(_times(factor, atom.den), Index((((outer,), 1),)))
                if all(terms.get(m) == c for m, c in partner.terms):
                    joined = _times(factor, mod(atom.num, _times(atom.den, outer.den)))
                    return _exchange(index, {mono: coef, **dict(partner.terms)}, joined)
    return None


def _exchange(index: Index, old: dict[Monomial, int], new: Index) -> Index:
    """``index - old + new`` without another recombination."""
    merged = dict(index.terms)
    for mono, coef in old.items():
        merged[mono] = merged.get(mono, 0) - coef
    for mono, coef in new.terms:
        merged[mono] = merged.get(mono, 0) + coef
    return Index._build(merged)


@lru_cache(maxsize=100_000)
def nonnegative(index: Index) -> bool:
    """True if the index is provably >= 0 for all dims >= 1 and axes in range."""
    shifted: dict[Monomial, int] = {}
    for mono, coef in index.lower.terms:
        if not all(_never_negative(atom) for atom in mono):
            return False
        # a dim is at least 1: with D = 1 + D', coefficients that are all >= 0 prove the claim
        expanded: dict[Monomial, int] = {(): coef}
        for atom in mono:
            factors: tuple[Monomial, ...] = ((), (atom,)) if isinstance(atom, Dim) else ((atom,),)
            grown: dict[Monomial, int] = {}
            for left, c in expanded.items():
                for right in factors:
                    key = tuple(sorted(left + right, key=_atom_key))
                    grown[key] = grown.get(key, 0) + c
            expanded = grown
        for key, c in expanded.items():
            shifted[key] = shifted.get(key, 0) + c
    return all(coef >= 0 for coef in shifted.values())


def _never_negative(atom: Atom) -> bool:
    return nonnegative(atom.num) if isinstance(atom, FloorDiv) else True


def _bound(index: Index, largest: bool) -> Index:
    total = ZERO
    for mono, coef in index.terms:
        grow = largest == (coef > 0)
        product = Index.of(coef)
        signed = [atom for atom in mono if not _never_negative(atom)]
        for atom in mono:
            if atom in signed and len(mono) > 1:
                edge = _atom_bound(atom, grow)
                # the other factors stretch a negative value as well as a positive one
                product = product * (edge if not grow or nonnegative(edge) else ZERO)
            else:
                product = product * _atom_bound(atom, grow or bool(signed and len(mono) > 1))
        total = total + product
    return total


def _atom_bound(atom: Atom, largest: bool) -> Index:
    match atom:
        case Axis(_, extent):
            return extent - 1 if largest else ZERO
        case Dim():
            return Index.of(atom)
        case FloorDiv(num, den):
            if not den.axes:
                return floordiv(num.upper if largest else num.lower, den)
            return num.upper if largest else num.lower
        case Mod(num, den):
            tight = nonnegative(num) and nonnegative(den - 1 - num.upper)
            return (num.upper if tight else den - 1) if largest else ZERO


def _split(num: Index, den: Index) -> tuple[Index, Index]:
    """``num = den * quotient + rest`` term by term; den must be one monomial with a positive coefficient."""
    if len(den.terms) != 1:
        return ZERO, num
    (factor, scale) = den.terms[0]
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coef in num.terms:
        remaining = list(mono)
        try:
            for atom in factor:
                remaining.remove(atom)
        except ValueError:
            rest[mono] = rest.get(mono, 0) + coef
            continue
        whole = int(math.copysign(abs(coef) // scale, coef)) if mono else coef // scale
        key = tuple(remaining)
        quotient[key] = quotient.get(key, 0) + whole
        rest[mono] = rest.get(mono, 0) + coef - whole * scale
    return Index._build(quotient), Index._build(rest)


def _low_digits(num: Index, den: int) -> tuple[int, Index, Index] | None:
    """``num = g * high + low`` with ``0 <= low < g`` and g a divisor of den: the mixed-radix digits that a division by
    den cannot see. The largest such g, or None."""
    divisors = {math.gcd(den, coef) for mono, coef in num.terms if mono} - {1}
    for g in sorted(divisors, reverse=True):
        low = Index._build({mono: (coef if mono else coef % g) for mono, coef in num.terms if not mono or coef % g})
        if nonnegative(low) and nonnegative(g - 1 - low):
            return g, Index._build({mono: coef // g for mono, coef in (num - low).terms}), low
    return None


def _common(num: Index, den: int) -> tuple[int, Index, int]:
    """gcd g of den and all non-constant coefficients; num = g * reduced + left with 0 <= left < g."""
    g = den
    constant = 0
    for mono, coef in num.terms:
        if mono:
            g = math.gcd(g, coef)
        else:
            constant = coef
    left = constant % g
    reduced = Index._build({mono: (coef // g if mono else (constant - left) // g) for mono, coef in num.terms})
    return g, reduced, left


@lru_cache(maxsize=100_000)
def floordiv(num: Index, den: Index) -> Index:
    """``num // den`` in normal form; den is at least 1."""
    if den.constant == 1:
        return num
    if num.constant is not None and den.constant is not None:
        return Index.of(num.constant // den.constant)
    if nonnegative(num) and nonnegative(den - 1 - num):
        return ZERO
    quotient, rest = _split(num, den)
    if nonnegative(rest) and nonnegative(den - 1 - rest):
        return quotient
    if nonnegative(rest + den) and nonnegative(-1 - rest):
        return quotient - 1
    if den.constant is not None:
        if (digits := _low_digits(rest, den.constant)) is not None:
            return quotient + floordiv(digits[1], Index.of(den.constant // digits[0]))
        g, reduced, _ = _common(rest, den.constant)
        if g > 1:
            return quotient + floordiv(reduced, Index.of(den.constant // g))
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, FloorDiv):
            return quotient + floordiv(atom.num, atom.den * den)
    return quotient + Index((((FloorDiv(rest, den),), 1),)) if rest.terms else quotient


@lru_cache(maxsize=100_000)
def mod(num: Index, den: Index) -> Index:
    """``num % den`` in normal form; den is at least 1."""
    if den.constant == 1:
        return ZERO
    if num.constant is not None and den.constant is not None:
        return Index.of(num.constant % den.constant)
    if nonnegative(num) and nonnegative(den - 1 - num):
        return num
    _, rest = _split(num, den)
    if nonnegative(rest) and nonnegative(den - 1 - rest):
        return rest
    if den.constant is not None:
        if (digits := _low_digits(rest, den.constant)) is not None:
            return mod(digits[1], Index.of(den.constant // digits[0])) * digits[0] + digits[2]
        g, reduced, left = _common(rest, den.constant)
        if g > 1:
            return mod(reduced, Index.of(den.constant // g)) * g + left
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, Mod) and _split(atom.den, den)[1] == ZERO:
            return mod(atom.num, den)
    return Index((((Mod(rest, den),), 1),)) if rest.terms else ZERO


def _interval(index: Index) -> tuple[int, int]:
    low = high = 0
    for mono, coef in index.terms:
        least, most = coef, coef
        for atom in mono:
            corners = [x * y for x in (least, most) for y in _atom_interval(atom)]
            least, most = min(corners), max(corners)
        low, high = low + least, high + most
    return low, high


def _atom_interval(atom: Atom) -> tuple[int, int]:
    match atom:
        case Dim(_, limit):
            return 1, limit
        case Axis(_, extent):
            return 0, max(_interval(extent)[1] - 1, 0)
        case FloorDiv(num, den):
            corners = [x // max(y, 1) for x in _interval(num) for y in _interval(den)]
            return min(corners), max(corners)
        case Mod(_, den):
            return 0, max(_interval(den)[1] - 1, 0)


def product(values: Iterable[IndexLike]) -> Index:
    total = ONE
    for value in values:
        total = total * Index.of(value)
    return total


def contiguous_strides(shape: Iterable[Index]) -> tuple[Index, ...]:
    """Row-major strides in elements."""
    strides: list[Index] = []
    step = ONE
    for extent in reversed(tuple(shape)):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def linearize(index: Iterable[IndexLike], shape: Iterable[Index]) -> Index:
    """Row-major position of a multi-index."""
    total = ZERO
    for value, stride in zip(index, contiguous_strides(shape), strict=True):
        total = total + Index.of(value) * stride
    return total


def delinearize(position: Index, shape: Iterable[Index]) -> tuple[Index, ...]:
    """The multi-index of a row-major position; inverse of :func:`linearize` for positions in range."""
    extents = tuple(shape)
    strides = contiguous_strides(extents)
    parts: list[Index] = []
    for level, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        part = floordiv(position, stride)
        parts.append(part if level == 0 and nonnegative(extent - 1 - part) else mod(part, extent))
    return tuple(parts)
