"""The header of one thing that runs: state, elapsed and left time, facts, the last failure, and how to stop it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from nicegui import ui

from ropewalk.control.facts import shown_facts, shown_number
from ropewalk.escaping import escaped
from ropewalk.page.actions import ActionOutcome
from ropewalk.page.fact_chips import FactChips
from ropewalk.page.now import has_ended, look_of, problem_words, progress_words, shown_state
from ropewalk.page.totals import totals
from ropewalk.page.watcher import Seen
from ropewalk.quantities import shown_duration, shown_size


class ThingHeader:
    """The header. Make it where it stands; `show` changes it in place.

    Args:
        actions: of the whole, such as "stop", that this visitor may ask for.
        act: does one of them, and returns what became of it.
    """

    def __init__(self, actions: tuple[str, ...], act: Callable[[str], Awaitable[ActionOutcome]]) -> None:
        self._act = act
        self._buttons: list[ui.button] = []
        with ui.element("div").classes("rw-thing w-full").style("display:block") as self._root:
            with ui.row().classes("items-center w-full").style("gap: 2px 8px"):
                self._name = ui.label().classes("rw-title").style("min-width: 0; max-width: 100%")
                self._kind = ui.label().classes("rw-small").style("white-space:nowrap;flex:none")
                self._run = ui.link("").classes("rw-small").style("white-space:nowrap;flex:none")
                ui.space()
                for action in actions:
                    self._buttons.append(self._button(action))
            with ui.element("div").classes("rw-progress q-my-xs") as self._track:
                self._bar = ui.element("div")
            self._facts = FactChips(ui.element("div").classes("rw-facts q-mt-xs"))
        self._problem = ui.label().classes("rw-banner rw-problem")
        self._failure = ui.label().classes("rw-banner")

    def show(self, seen: Seen, age_s: float, pool: Seen | None = None) -> None:
        """Show what is known.

        Args:
            seen: what is known.
            age_s: seconds since it was seen.
            pool: that evaluates for it, whose processes and failures are also its own.
        """
        view = seen.view
        failure = view.last_failure or (pool.view.last_failure if pool else "")
        self._name.set_text(escaped(view.name) or view.id)
        self._kind.set_text(f"{view.kind} · launcher pid {view.pid}")
        self._run.set_visibility(bool(view.run))
        if view.run and not self._run.text:
            place = "search" if view.kind == "search" else "runs"
            self._run.props["href"] = f"/{place}/{quote(view.run, safe='')}"
            self._run.set_text(f"run {escaped(view.run)}")
        classes = f"rw-thing w-full rw-{look_of(seen)}{' rw-ended' if has_ended(seen) else ''}"
        if " ".join(self._root.classes) != classes:
            self._root.classes(replace=classes)
        self._track.set_visibility(view.progress is not None)
        width = f"{100 * min(1.0, max(0.0, view.progress or 0.0)):.1f}%"
        if self._bar.style != {"width": width}:
            self._bar.style(replace=f"width:{width}")
        self._facts.show(header_facts(seen, pool))
        for label, words in (
            (self._problem, problem_words(seen, age_s)),
            (self._failure, f"Last failure: {escaped(failure)}" if failure else ""),
        ):
            label.set_text(words)
            label.set_visibility(bool(words))
        for button in self._buttons:
            button.set_visibility(seen.is_live)

    def _button(self, action: str) -> ui.button:
        with ui.dialog() as dialog, ui.card():
            ui.label(f"{action.capitalize()} the whole of it?").classes("text-bold")
            ui.label("All of its processes are told to end." if action == "stop" else "It can be continued later.")
            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
                ui.button(action.capitalize(), on_click=lambda: dialog.submit(True)).props(
                    "no-caps unelevated color=negative"
                )

        async def ask() -> None:
            if not await dialog:
                return
            button.disable()
            try:
                outcome = await self._act(action)
            finally:
                button.enable()
            notify(outcome)

        button = ui.button(action.capitalize(), icon=action, on_click=ask).props("outline dense no-caps color=negative")
        return button.classes("q-px-sm").style("flex: none")


def header_facts(seen: Seen, pool: Seen | None = None) -> dict[str, str]:
    """Return what the header shows of a thing, values by label, in order.

    Args:
        seen: what is known.
        pool: that evaluates for it.
    """
    view, sums = seen.view, totals(pool or seen)
    facts = {
        "state": escaped(shown_state(seen)),
        "elapsed": shown_duration(max(0.0, float(round(view.at - view.started)))),
    }
    if left := progress_words(seen):
        facts["progress"] = left
    if sums.processes and not has_ended(seen):
        facts["processes up"] = f"{sums.up} of {sums.processes}"
    if sums.cores is not None and seen.is_live:
        facts["CPU"] = f"{sums.cores:.1f} cores"
    if sums.memory_bytes:
        facts["memory"] = shown_size(sums.memory_bytes)
    if sums.rate is not None and not sums.rate_of and pool is None:
        facts["rate"] = f"{shown_number(sums.rate)}/s"
    if sums.restarts and not {"restarts", "deaths"} & view.facts.keys():  # which say the same
        facts["restarts"] = str(sums.restarts)
    return {**facts, **{name: value for name, value in shown_facts(view.facts) if name not in facts}}


def notify(outcome: ActionOutcome) -> None:
    """Show what became of an action; a failure stays until it is dismissed."""
    ui.notify(
        escaped(outcome.text),
        type="positive" if outcome.done else "negative",
        position="bottom-right",
        multi_line=True,
        actions=[{"label": "OK", "color": "white"}],
        timeout=8000 if outcome.done else 0,
    )


__all__ = ["ThingHeader", "header_facts", "notify"]
