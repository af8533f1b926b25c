//! The ops: one file each, with the argument struct, the formula and the shape check.
//!
//! The structs hold handles only. Every device obeys the contract written here; [`crate::ReferenceDevice`] is the
//! formula as plain loops and the truth in every test.

use crate::{Param, Tensor, Weight};

mod add;
mod add_gated;
mod add_rms_norm;
mod attention;
mod cache_rows;
mod causal_conv;
mod check;
mod concat;
mod delta_gates;
mod embed;
mod experts;
mod gated_delta;
mod gated_rms_norm;
mod gather_outputs;
mod grouped_conv;
mod hadamard;
mod linear;
mod qk_norm_rope;
mod rms_norm;
mod route;
mod swiglu;

pub use add::Add;
pub use add_gated::AddGated;
pub use add_rms_norm::AddRmsNorm;
pub use attention::{Attention, Sight};
pub use cache_rows::CacheRows;
pub use causal_conv::CausalConv;
pub use concat::Concat;
pub use delta_gates::DeltaGates;
pub use embed::Embed;
pub use experts::{ExpertWeights, Experts};
pub use gated_delta::{GatedDelta, KeyHeadOrder};
pub use gated_rms_norm::GatedRmsNorm;
pub use gather_outputs::GatherOutputs;
pub use grouped_conv::GroupedConv;
pub use hadamard::Hadamard;
pub use linear::{Linear, Projection};
pub use qk_norm_rope::{AttentionShape, QkNormRope, Rope, RopePairing};
pub use rms_norm::RmsNorm;
pub use route::Route;
pub use swiglu::SwiGlu;

/// One recorded op.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant is documented at the struct it holds")]
pub enum Op {
    Embed(Embed),
    RmsNorm(RmsNorm),
    AddRmsNorm(AddRmsNorm),
    Add(Add),
    Linear(Linear),
    SwiGlu(SwiGlu),
    QkNormRope(QkNormRope),
    Attention(Attention),
    CausalConv(CausalConv),
    DeltaGates(DeltaGates),
    GatedDelta(GatedDelta),
    GatedRmsNorm(GatedRmsNorm),
    Route(Route),
    Experts(Experts),
    AddGated(AddGated),
    GatherOutputs(GatherOutputs),
    Concat(Concat),
    Hadamard(Hadamard),
    GroupedConv(GroupedConv),
}

impl Op {
    /// Name of the op, as in its file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::RmsNorm(_) => "rms_norm",
            Self::AddRmsNorm(_) => "add_rms_norm",
            Self::Add(_) => "add",
            Self::Linear(_) => "linear",
            Self::SwiGlu(_) => "swiglu",
            Self::QkNormRope(_) => "qk_norm_rope",
            Self::Attention(_) => "attention",
            Self::CausalConv(_) => "causal_conv",
            Self::DeltaGates(_) => "delta_gates",
            Self::GatedDelta(_) => "gated_delta",
            Self::GatedRmsNorm(_) => "gated_rms_norm",
            Self::Route(_) => "route",
            Self::Experts(_) => "experts",
            Self::AddGated(_) => "add_gated",
            Self::GatherOutputs(_) => "gather_outputs",
            Self::Concat(_) => "concat",
            Self::Hadamard(_) => "hadamard",
            Self::GroupedConv(_) => "grouped_conv",
        }
    }

    /// Tensors whose values the op needs.
    pub fn reads(&self) -> Vec<Tensor> {
        match self {
            Self::Embed(_) => vec![],
            Self::RmsNorm(op) => vec![op.x],
            Self::AddRmsNorm(op) => vec![op.x, op.y],
            Self::Add(op) => vec![op.x, op.y],
            Self::Linear(op) => vec![op.x],
            Self::SwiGlu(op) => vec![op.gate, op.up],
            Self::QkNormRope(op) => vec![op.q, op.k, op.v],
            Self::Attention(op) => [op.q, op.k, op.v].into_iter().chain(op.gate).collect(),
            Self::CausalConv(op) => vec![op.x],
            Self::DeltaGates(op) => vec![op.a, op.b],
            Self::GatedDelta(op) => vec![op.qkv, op.g, op.beta],
            Self::GatedRmsNorm(op) => vec![op.x, op.gate],
            Self::Route(op) => vec![op.logits],
            Self::Experts(op) => vec![op.x, op.chosen, op.weights],
            Self::AddGated(op) => vec![op.x, op.y, op.gate],
            Self::GatherOutputs(op) => vec![op.x],
            Self::Concat(op) => vec![op.x, op.y],
            Self::Hadamard(op) => vec![op.x],
            Self::GroupedConv(op) => vec![op.x, op.dynamic],
        }
    }

    /// Tensors that the op fills.
    pub fn writes(&self) -> Vec<Tensor> {
        match self {
            Self::Embed(op) => vec![op.out],
            Self::RmsNorm(op) => vec![op.out],
            Self::AddRmsNorm(op) => vec![op.sum, op.out],
            Self::Add(op) => vec![op.out],
            Self::Linear(op) => op.projections.iter().map(|projection| projection.out).collect(),
            Self::SwiGlu(op) => vec![op.out],
            Self::QkNormRope(op) => [op.out_q, op.out_k, op.out_v].into_iter().chain(op.out_gate).collect(),
            Self::Attention(op) => vec![op.out],
            Self::CausalConv(op) => vec![op.out],
            Self::DeltaGates(op) => vec![op.g, op.beta],
            Self::GatedDelta(op) => vec![op.terms, op.out],
            Self::GatedRmsNorm(op) => vec![op.out],
            Self::Route(op) => vec![op.chosen, op.weights],
            Self::Experts(op) => vec![op.out],
            Self::AddGated(op) => vec![op.out],
            Self::GatherOutputs(op) => vec![op.out],
            Self::Concat(op) => vec![op.out],
            Self::Hadamard(op) => vec![op.out],
            Self::GroupedConv(op) => vec![op.out],
        }
    }

    /// Weights that the op multiplies with or looks up in.
    pub fn weights(&self) -> Vec<&Weight> {
        match self {
            Self::Embed(op) => vec![&op.table],
            Self::Linear(op) => op.projections.iter().map(|projection| &projection.weight).collect(),
            Self::Experts(op) => op.experts.iter().flat_map(|e| [&e.gate, &e.up, &e.down]).collect(),
            _ => vec![],
        }
    }

    /// Small vectors that the op uses.
    pub fn params(&self) -> Vec<&Param> {
        match self {
            Self::RmsNorm(op) => vec![&op.weight],
            Self::AddRmsNorm(op) => vec![&op.weight],
            Self::Linear(op) => op.projections.iter().filter_map(|projection| projection.bias.as_ref()).collect(),
            Self::QkNormRope(op) => {
                op.q_norm.iter().chain(&op.k_norm).chain(std::iter::once(&op.rope.inv_freq)).collect()
            }
            Self::CausalConv(op) => vec![&op.weight],
            Self::DeltaGates(op) => vec![&op.neg_exp_a, &op.dt_bias],
            Self::GatedRmsNorm(op) => vec![&op.weight],
            Self::Hadamard(op) => vec![&op.signs],
            Self::GroupedConv(op) => vec![&op.base],
            _ => vec![],
        }
    }
}
