"""Running sums, products, maxima and minima along one dimension."""

from __future__ import annotations

from mtmc.capture.aten.site import Args, NotLowered, Site, lowers, plain, space
from mtmc.ir.expr import Scan, Stage
from mtmc.ir.index import Axis
from mtmc.ir.types import DType


def _scan(site: Site, a: Args, monoid: str, convert: DType | None) -> list[Stage]:
    axes, index = space(a.self.shape)
    element = site.cast(site.load(a.self, index), convert)
    along = index[plain(a.dim) % len(index)].single if index else None
    return [site.store(axes, index, Scan(monoid, along, element) if isinstance(along, Axis) else element)]


@lowers("cumsum")
def cumsum(site: Site, a: Args) -> list[Stage]:
    return _scan(site, a, "sum", site.dtype().compute)


@lowers("cumprod")
def cumprod(site: Site, a: Args) -> list[Stage]:
    return _scan(site, a, "prod", site.dtype().compute)


@lowers("cummax")
def cummax(site: Site, a: Args) -> list[Stage]:
    return _values_only(site, a, "max")


@lowers("cummin")
def cummin(site: Site, a: Args) -> list[Stage]:
    return _values_only(site, a, "min")


def _values_only(site: Site, a: Args, monoid: str) -> list[Stage]:
    if site.used[1]:
        raise NotLowered("a running maximum with its positions")
    return _scan(site, a, monoid, None)
