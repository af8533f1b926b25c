use crate::host::Run;
use crate::ops::GatedDelta;

/// Keeps the state after every row, so that each row continues its parent's state as the formula says.
pub(super) fn gated_delta(op: &GatedDelta, run: &mut Run<'_>) {
    run.write(op.out, |run, out: &mut [f32]| {
        run.write(op.terms, |run, terms: &mut [f32]| walk(op, run, terms, out));
    });
}

fn walk(op: &GatedDelta, run: &Run<'_>, terms: &mut [f32], out: &mut [f32]) {
    let layout = op.layout;
    let (heads, value_dim) = (layout.num_value_heads, layout.value_head_dim);
    let head_state = layout.key_head_dim * value_dim;
    let rows = run.rows();
    for head in 0..heads {
        let mut states: Vec<Vec<f32>> = Vec::with_capacity(rows.len());
        for row in 0..rows.len() {
            let mut state = match rows.parent(row) {
                Some(parent) => states[parent].clone(),
                None => {
                    run.state(rows.sequence(row)).delta(op.slot).recurrent[head * head_state..][..head_state].to_vec()
                }
            };
            let out = &mut out[(row * heads + head) * value_dim..][..value_dim];
            let terms = &mut terms[row * layout.term_width()..][..layout.term_width()];
            step(op, run, row, head, &mut state, terms, out);
            states.push(state);
        }
    }
}

/// Repeats the updates of `path` on the committed state.
pub(super) fn advance_delta(op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]) {
    let layout = &op.layout;
    let (key_dim, value_dim) = (layout.key_head_dim, layout.value_head_dim);
    for (head, state) in recurrent.chunks_exact_mut(key_dim * value_dim).enumerate() {
        for &row in path {
            let terms = &run.read::<f32>(op.terms)[row * layout.term_width()..][..layout.term_width()];
            let k = &terms[layout.key_terms(op.key_head_order.key_head(head, layout))..][..key_dim];
            let u = &terms[layout.write_terms(head)..][..value_dim];
            for (state, k) in state.chunks_exact_mut(value_dim).zip(k) {
                for (state, u) in state.iter_mut().zip(u) {
                    *state = *state * terms[layout.decay_term(head)] + k * u;
                }
            }
        }
    }
}

/// One step of one head: `state` is `[key_dim, value_dim]`, `terms` those of the row.
fn step(
    op: &GatedDelta,
    run: &Run<'_>,
    row: usize,
    head: usize,
    state: &mut [f32],
    terms: &mut [f32],
    out: &mut [f32],
) {
    let layout = &op.layout;
    let (key_dim, value_dim) = (layout.key_head_dim, layout.value_head_dim);
    let keys = layout.num_key_heads * key_dim;
    let key_head = op.key_head_order.key_head(head, layout);
    let qkv = &run.read::<f32>(op.qkv)[row * op.qkv.width..][..op.qkv.width];
    let q = normalized(&qkv[key_head * key_dim..][..key_dim], (key_dim as f32).sqrt());
    let k = normalized(&qkv[keys + key_head * key_dim..][..key_dim], 1.0);
    let v = &qkv[2 * keys + head * value_dim..][..value_dim];
    let decay = run.read::<f32>(op.g)[row * layout.num_value_heads + head].exp();
    let beta = run.read::<f32>(op.beta)[row * layout.num_value_heads + head];

    terms[layout.key_terms(key_head)..][..key_dim].copy_from_slice(&k);
    terms[layout.decay_term(head)] = decay;
    for value in state.iter_mut() {
        *value *= decay;
    }
    for j in 0..value_dim {
        let read: f32 = (0..key_dim).map(|i| state[i * value_dim + j] * k[i]).sum();
        let u = beta * (v[j] - read);
        terms[layout.write_terms(head) + j] = u;
        for i in 0..key_dim {
            state[i * value_dim + j] += k[i] * u;
        }
        out[j] = (0..key_dim).map(|i| state[i * value_dim + j] * q[i]).sum();
    }
}

/// `x / √(Σx² + 1e−6) / divisor`.
fn normalized(x: &[f32], divisor: f32) -> Vec<f32> {
    let sum: f32 = x.iter().map(|x| x * x).sum();
    let root = (sum + 1e-6).sqrt();
    x.iter().map(|x| x / root / divisor).collect()
}
