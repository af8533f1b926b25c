use super::stored;
use crate::host::Run;
use crate::ops::Embed;

pub(super) fn embed(op: &Embed, run: &mut Run<'_>) {
    let table = stored(&op.table);
    let width = op.out.width;
    run.write(op.out, |run, out: &mut [f32]| {
        for (row, &token) in run.rows().tokens().iter().enumerate() {
            table.row(token as usize).dequantize(&mut out[row * width..][..width]);
        }
    });
}
