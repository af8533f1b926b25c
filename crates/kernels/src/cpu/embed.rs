use super::Kernels;
use super::product::look_up;
use super::share::for_each_row;
use super::weight::{Form, cpu_weight};
use crate::host::Run;
use crate::ops::Embed;

/// A table that is the output head as well is read where its products read it, so that no byte of the file stays in use.
pub(super) fn embed(cpu: &Kernels, op: &Embed, run: &mut Run<'_>) {
    let table = cpu_weight(&op.table);
    let tokens = run.rows().tokens();
    run.write(op.out, |_, out: &mut [f32]| {
        for_each_row(&mut cpu.team().pool, out, table.data.columns, |row, out| {
            let token = tokens[row] as usize;
            match &table.form {
                Form::Dequantized => table.data.row(token).dequantize(out),
                Form::Floats(_, tiles) | Form::Codes(tiles) => look_up(cpu.set, tiles, token, out),
            }
        });
    });
}
