//! The rules that every plan must keep, for any program and any options of the planner.

use wgrad::{
    Program,
    op::Op,
    plan::{Body, Grouping, Home, Instr, Kernel, Kind, Level, Operand, Plan, Value},
};

/// Checks the plan of a program.
///
/// # Errors
/// The first rule that the plan breaks, and the place.
pub fn sound(program: &Program, options: &Grouping) -> Result<(), String> {
    let plan = &Plan::with(program, options);
    // True for the slots that hold a value.
    let mut written = vec![false; plan.slots.len()];
    for (k, kernel) in plan.kernels.iter().enumerate() {
        reads_and_writes(plan, kernel, &mut written).map_err(|why| format!("kernel {k} {why}"))?;
        width(plan, kernel, options).map_err(|why| format!("kernel {k} {why}"))?;
        levels(kernel).map_err(|why| format!("kernel {k} {why}"))?;
    }
    let ends = || plan.taps.iter().chain(plan.commits.iter().map(|(_, read)| read));
    if let Some(read) = ends().find(|read| plan.slots[read.slot].home == Home::Transient && !written[read.slot]) {
        return Err(format!("slot {} is shown or committed, and nobody writes it", read.slot));
    }
    let operands = plan.kernels.iter().flat_map(|k| k.reads.iter().chain(&k.writes));
    match operands.chain(ends()).find(|operand| !within(operand, plan.slots[operand.slot].len)) {
        Some(operand) => Err(format!("{operand:?} leaves its slot of {}", plan.slots[operand.slot].len)),
        None => in_place(program, plan, options),
    }
}

/// Checks the states that are written in place, with an unlimited number of buffers and with the limit. With the limit,
/// a plan that writes nothing in place may need more kernels; the plans are then not compared.
fn in_place(program: &Program, plan: &Plan, options: &Grouping) -> Result<(), String> {
    let elsewhere = |buffers| Plan::with(program, &Grouping { in_place: false, buffers, ..options.clone() });
    let wide = Plan::with(program, &Grouping { buffers: usize::MAX, ..options.clone() });
    let wide_elsewhere = elsewhere(usize::MAX);
    if wide.kernels.len() != wide_elsewhere.kernels.len() {
        return Err("the number of kernels depends on where states are written".into());
    }
    states_in_place(&wide, &wide_elsewhere)?;
    let elsewhere = elsewhere(options.buffers);
    let alike =
        plan.kernels.iter().map(|kernel| &kernel.nodes).eq(elsewhere.kernels.iter().map(|kernel| &kernel.nodes));
    if alike { states_in_place(plan, &elsewhere) } else { Ok(()) }
}

/// Checks that each value of a row is computed from values of rows, or reduced over the row.
fn levels(kernel: &Kernel) -> Result<(), String> {
    let Kind::Loop(body) = &kernel.kind else { return Ok(()) };
    let of_row = |value: &&Value| value.level == Level::Row && !matches!(value.instr, Instr::Reduce(..));
    for value in body.values.iter().filter(of_row) {
        if let Some(x) = value.instr.operands().find(|x| body.values[*x].level != Level::Row) {
            return Err(format!("computes {value:?}, of a row, from value {x}, of elements"));
        }
    }
    Ok(())
}

/// Checks that a kernel reads only slots that were written, and that it reads a slot that it writes only element by
/// element, as it writes it.
fn reads_and_writes(plan: &Plan, kernel: &Kernel, written: &mut [bool]) -> Result<(), String> {
    for (i, read) in kernel.reads.iter().enumerate() {
        if plan.slots[read.slot].home == Home::Transient && !written[read.slot] {
            return Err(format!("reads slot {} before any write", read.slot));
        }
        let over =
            |(w, write): (usize, &Operand)| write.slot == read.slot && !(write == read && kernel.reads_pointwise(i, w));
        if kernel.writes.iter().enumerate().any(over) {
            return Err(format!("writes slot {}, and reads other elements of it", read.slot));
        }
    }
    for write in &kernel.writes {
        if !matches!(plan.slots[write.slot].home, Home::Transient | Home::State(_)) {
            return Err(format!("writes slot {}, which is no memory", write.slot));
        }
        written[write.slot] = true;
    }
    for (i, write) in kernel.writes.iter().enumerate() {
        if let Some(other) = kernel.writes[..i].iter().find(|other| overlap(write, other)) {
            return Err(format!("writes {write:?} over {other:?}"));
        }
    }
    Ok(())
}

/// Checks that a kernel that computes more than one node keeps to the limit of buffers.
fn width(plan: &Plan, kernel: &Kernel, options: &Grouping) -> Result<(), String> {
    let computed = |body: &Body| {
        let loads = |instr: &Instr| matches!(instr, Instr::Load(_) | Instr::Const(_));
        body.values.iter().filter(|value| !loads(&value.instr)).count()
    };
    let several = match &kernel.kind {
        Kind::Loop(body) => computed(body) > 1,
        Kind::MatMul(matmul) => computed(&matmul.epilogue) > 1,
        Kind::Fill(_) | Kind::Op(_) => false,
    };
    let buffers = plan.buffers(kernel);
    if several && buffers > options.buffers {
        return Err(format!("of {:?} needs {buffers} buffers, of {} that it may", kernel.nodes, options.buffers));
    }
    Ok(())
}

/// Checks that no kernel writes a state before the last kernel that can fail, or before the last kernel that reads the
/// old value. The plan `elsewhere`, which writes no state in place, shows the reads: there, a read of a state always
/// reads the old value.
fn states_in_place(plan: &Plan, elsewhere: &Plan) -> Result<(), String> {
    let fails = |kernel: &Kernel| matches!(kernel.kind, Kind::Op(Op::Gather(_) | Op::ScatterAdd { .. }));
    for (k, kernel) in plan.kernels.iter().enumerate() {
        for home in kernel.writes.iter().map(|write| plan.slots[write.slot].home) {
            let Home::State(_) = home else { continue };
            if plan.kernels[k..].iter().any(fails) {
                return Err(format!("kernel {k} writes a state, and a later kernel can fail"));
            }
            let later = elsewhere.kernels[k + 1..].iter().flat_map(|kernel| &kernel.reads);
            if later.chain(&elsewhere.taps).any(|read| elsewhere.slots[read.slot].home == home) {
                return Err(format!("kernel {k} writes a state, and its old value is read later"));
            }
            if plan.commits.iter().any(|(state, _)| home == Home::State(*state)) {
                return Err(format!("kernel {k} writes a state that is committed, too"));
            }
        }
    }
    Ok(())
}

/// True if every element of a strided operand lies in a slot of this length.
fn within(read: &Operand, len: usize) -> bool {
    bounds(read).is_none_or(|(low, high)| low >= 0 && high < len as isize)
}

/// The lowest and the highest position of an operand in its slot; `None` if it is empty.
fn bounds(read: &Operand) -> Option<(isize, isize)> {
    if read.shape.numel() == 0 {
        return None;
    }
    let ends = read.shape.iter().zip(&read.strides).map(|(&n, &stride)| (n as isize - 1) * stride);
    let (low, high) = ends.fold((0, 0), |(low, high), end| (low + end.min(0), high + end.max(0)));
    Some((read.offset as isize + low, read.offset as isize + high))
}

/// True if the ranges of two operands overlap in the same slot.
fn overlap(a: &Operand, b: &Operand) -> bool {
    match (bounds(a), bounds(b)) {
        (Some(x), Some(y)) if a.slot == b.slot => x.0 <= y.1 && y.0 <= x.1,
        _ => false,
    }
}
