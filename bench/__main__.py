"""``python -m bench``: run every benchmark and print the ratios."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from bench.depth import DEEP
from bench.measuring import Figure
from bench.parts import PARTS, Sizes
from bench.peers.registry import NAMES
from bench.peers.results import FOLDER, Plan, Results
from bench.peers.workloads import WORKLOADS

_PEERS: Final = "peers"
#: Parts whose event loop is asyncio's: uvloop's callbacks cannot be timed individually, and the
#: client is measured as most programs run it.
_ON_ASYNCIO: Final = ("bounds", "scale")
#: With these, all workloads on all peers take about two minutes.
_QUICK: Final = {"seconds": 0.5, "rounds": 1, "deep": DEEP // 100, "waiting": 30_000}
_QUICK_WORKLOADS: Final = ("W1", "W2", "W3", "W4", "W5", "W6")


def show(figure: Figure) -> Figure:
    """Print the figure."""
    bound = "at most" if figure.at_most else "at least"
    verdict = "holds" if figure.holds else "MISSED"
    sys.stdout.write(
        f"{figure.ratio:6.2f}  ({bound} {figure.target:.2f}, {verdict})  {figure.name}"
        f"  [{figure.ours} : {figure.reference}]\n"
    )
    sys.stdout.flush()
    return figure


def run_part(name: str, sizes: Sizes) -> list[Figure]:
    """Print the figures of a part as they are measured."""
    figures = PARTS[name](sizes)
    if not isinstance(figures, AsyncIterator):
        return [show(figure) for figure in figures]
    if name in _ON_ASYNCIO:
        return asyncio.run(_show_all(figures))
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(_show_all(figures))
    return uvloop.run(_show_all(figures))


async def _show_all(figures: AsyncIterator[Figure]) -> list[Figure]:
    return [show(figure) async for figure in figures]


def run_peers(
    results: Results, plan: Plan, peers: Sequence[str], workloads: Sequence[str]
) -> list[Figure]:
    """Measure the peers, and print their tables and the targets."""
    # Imported late: see bench.parts.
    from bench.peers.rounds import run_rounds  # noqa: PLC0415
    from bench.peers.tables import machine_line, peers_tables  # noqa: PLC0415
    from bench.peers.targets import target_figures  # noqa: PLC0415

    run_rounds(results, plan, peers, workloads)
    sys.stdout.write(f"{machine_line(results)}\n{peers_tables(results)}\n")
    return [show(figure) for figure in target_figures(results)]


def main() -> int:
    """Exit 1 if a target is missed."""
    given = _arguments()
    path = FOLDER / f"{given.save}.json" if given.save else None
    results = Results.open(path)
    figures: list[Figure] = []
    for name in (*PARTS, _PEERS) if given.only is None else (given.only,):
        if name == _PEERS:
            plan = Plan(rounds=given.rounds, seconds=given.seconds, waiting=given.waiting)
            figures += run_peers(results, plan, given.peers, given.workloads)
        else:
            sizes = Sizes(seconds=given.seconds, rounds=given.rounds, deep=given.deep)
            results.figures[name] = run_part(name, sizes)
            figures += results.figures[name]
        if path is not None:
            results.save(path)
    return 0 if all(figure.holds for figure in figures) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="a figure is the median of these")
    parser.add_argument("--deep", type=int, default=DEEP, help="messages waiting, or in the log")
    parser.add_argument("--waiting", type=int, default=300_000, help="messages waiting in W7")
    parser.add_argument("--only", choices=(*PARTS, _PEERS), help="run one part")
    parser.add_argument("--peers", type=_names(NAMES), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--workloads", type=_names(tuple(WORKLOADS)), help="W1 to W8")
    parser.add_argument("--quick", action="store_true", help="one short round, W1 to W6")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(_QUICK)
    if given.workloads is None:
        given.workloads = _QUICK_WORKLOADS if given.quick else tuple(WORKLOADS)
    return given


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of names separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names).difference(known):
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}"
            )
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
