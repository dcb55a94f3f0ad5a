"""State that may be updated where it lies: no copy at the end of forward, and one launch less for every statistic."""

from __future__ import annotations

from dataclasses import replace

from mtmc.ir.expr import loads
from mtmc.ir.program import Call, Kernel, Library, Program, Ref, Stages, Tile, Update

_IN_PLACE = {f"aten.{name}.Tensor": f"aten.{name}_.Tensor" for name in ("add", "sub", "mul", "div")}


def updated_in_place(program: Program) -> dict[str, str]:
    """Buffers that may be the state itself: new value -> state.

    The one kernel that makes the new value must be the last that reads the old one, and must read every element no
    later than it writes it.
    """
    found: dict[str, str] = {}
    values = [update.value for update in program.updates]
    for update in program.updates:
        alone = values.count(update.value) == 1 and update.value not in program.outputs
        old, new = program.buffer(update.state), program.buffer(update.value)
        alike = (old.dtype, old.shape, old.strides) == (new.dtype, new.shape, new.strides)
        writers = program.writers(update.value)
        if alone and alike and len(writers) == 1 and _last_reader(program, update, writers[0]):
            if _elementwise(writers[0], update):
                found[update.value] = update.state
    return found


def library_calls(kernel: Kernel, places: dict[str, str]) -> Kernel:
    """The kernel with its copies of state dropped and its arithmetic on state done in place."""
    calls: list[Call] = []
    for call in kernel.calls:
        (result, *others) = call.results or (None,)
        if result in places and not others:
            if call.target == "aten.clone.default":
                continue
            call = replace(call, target=_IN_PLACE[call.target])
        calls.append(call)
    return replace(kernel, calls=tuple(calls))


def _last_reader(program: Program, update: Update, writer: Kernel) -> bool:
    position = program.kernels.index(writer)
    return not any(update.state in kernel.depends for kernel in program.kernels[position + 1 :])


def _elementwise(kernel: Kernel, update: Update) -> bool:
    """Each element is read where it is written."""
    match kernel.impl, kernel.spec:
        case Tile(), Stages(stages):
            (made,) = [stage for stage in stages if stage.target == update.value] or (None,)
            if made is None or made.accumulate or made.when or kernel.guard:
                return False
            reads = [load for stage in stages for load in loads(stage.body) if load.buffer == update.state]
            return all(load.index == made.store and not load.when for load in reads)
        case Library(), _:
            makers = [call for call in kernel.calls if update.value in call.results]
            users = [call for call in kernel.calls if update.state in call.refs()]
            if len(makers) != 1 or users not in ([], makers) or makers[0].results != (update.value,):
                return False
            copies = makers[0].target == "aten.clone.default" or makers[0].target in _IN_PLACE
            return copies and makers[0].args[:1] == (Ref(update.state),) and not makers[0].kwargs
    return False
