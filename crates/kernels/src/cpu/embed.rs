use super::Kernels;
use super::share::for_each_row;
use super::weight::cpu_weight;
use crate::host::Run;
use crate::ops::Embed;

/// Rows come from the bytes the table was loaded from, repacked or not: a table may also be the output head.
pub(super) fn embed(cpu: &Kernels, op: &Embed, run: &mut Run<'_>) {
    let table = &cpu_weight(&op.table).data;
    let tokens = run.rows().tokens();
    run.write(op.out, |_, out: &mut [f32]| {
        for_each_row(&mut cpu.team().pool, out, table.columns, |row, out| {
            table.row(tokens[row] as usize).dequantize(out);
        });
    });
}
