//! Gradients of a model's parts: by category of layer, of two parts side by side, and at the boundary of a frozen part.

use super::Measurement;
use std::fmt;

/// The kind of layer that a parameter belongs to, by its path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Category {
    /// Attention.
    Attention,
    /// A feed-forward layer of a block.
    FeedForward,
    /// An embedding of symbols or positions.
    Embedding,
    /// A norm.
    Norm,
    /// The layer that gives the output.
    Output,
    /// Any other.
    Other,
}

/// The words of a path that tell a category, in the order in which they count.
const WORDS: [(Category, &[&str]); 5] = [
    (Category::Attention, &["attention", "attn", "mha"]),
    (Category::FeedForward, &["feed", "ffn", "mlp", "ff"]),
    (Category::Embedding, &["embedding", "embeddings", "embed", "tokens", "positions", "wte", "wpe"]),
    (Category::Norm, &["norm", "ln", "bn", "layernorm", "batchnorm", "rmsnorm"]),
    (Category::Output, &["head", "output", "readout", "logits", "classifier"]),
];

impl Category {
    /// The category by the words of a path. Every character that is no letter separates words.
    ///
    /// ```
    /// use wgrad_nn::Category;
    /// assert_eq!(Category::of("block[0]/attention/output/weight"), Category::Attention);
    /// assert_eq!(Category::of("lm_head/weight"), Category::Output);
    /// ```
    pub fn of(path: &str) -> Self {
        let path = path.to_lowercase();
        let words: Vec<&str> = path.split(|c: char| !c.is_alphabetic()).collect();
        let told = WORDS.iter().find(|(_, known)| known.iter().any(|word| words.contains(word)));
        told.map_or(Category::Other, |(category, _)| *category)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Category::Attention => "attention",
            Category::FeedForward => "feed-forward",
            Category::Embedding => "embedding",
            Category::Norm => "norm",
            Category::Output => "output",
            Category::Other => "other",
        })
    }
}

/// The gradients of two parts of a model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Balance {
    /// The norm of the gradient of each part.
    pub norms: [f64; 2],
}

impl Balance {
    /// The norm of the first part over that of the second.
    pub fn ratio(&self) -> f64 {
        self.norms[0] / self.norms[1]
    }

    /// True if neither is more than 10 times the other.
    pub fn is_sound(&self) -> bool {
        (0.1..=10.0).contains(&self.ratio())
    }
}

/// The gradient that reaches a frozen part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Boundary {
    /// Mean |dL/dz| at the boundary.
    pub flow: f64,
    /// The median of mean |dL/dz| over all other sites.
    pub usual: f64,
}

impl Boundary {
    /// True if parameters behind the boundary could learn once they are trained: the gradient that reaches it is at
    /// least a millionth of the usual one. If the gradient does not reach it, train more of the layers behind it, not
    /// fewer: see [`crate::layers::paths::last_layers`].
    pub fn is_reached(&self) -> bool {
        self.flow >= 1e-6 * self.usual && self.flow > 0.0
    }
}

impl Measurement {
    /// The gradients of the parameters below two paths, such as `vision` and `text`. `None` if one has no parameter
    /// with a gradient.
    pub fn balance(&self, first: &str, second: &str) -> Option<Balance> {
        let norm = |prefix: &str| {
            let below =
                |path: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            let mut own = self.params.iter().filter(|param| below(&param.path)).peekable();
            own.peek()?;
            Some(own.map(|param| param.grad.norm.powi(2)).sum::<f64>().sqrt())
        };
        Some(Balance { norms: [norm(first)?, norm(second)?] })
    }

    /// The gradient at a site behind which parameters are frozen, such as `projection/x`. `None` if no gradient is
    /// measured there, or none at any other site.
    pub fn boundary(&self, site: &str) -> Option<Boundary> {
        let flows = |own: bool| -> Vec<f64> {
            let sites = self.sites.iter().filter(|of| (of.path == site) == own);
            sites.filter_map(|of| Some(of.flow.as_ref()?.mean_abs)).collect()
        };
        let mut others = flows(false);
        others.sort_by(f64::total_cmp);
        Some(Boundary { flow: *flows(true).first()?, usual: *others.get(others.len() / 2)? })
    }

    /// The norm of the gradient of each category that has parameters with one, in the order of [`Category`].
    pub fn categories(&self) -> Vec<(Category, f64)> {
        let mut all = std::collections::BTreeMap::<Category, f64>::new();
        for param in &self.params {
            *all.entry(Category::of(&param.path)).or_default() += param.grad.norm.powi(2);
        }
        all.into_iter().map(|(category, square)| (category, square.sqrt())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_follow_the_words_of_a_path() {
        for (path, want) in [
            ("block[3]/attention/qkv/weight", Category::Attention),
            ("h.0.attn.c_proj.weight", Category::Attention),
            ("block[3]/ffn/up/weight", Category::FeedForward),
            ("transformer.h.0.mlp.c_fc", Category::FeedForward),
            ("tokens/weight", Category::Embedding),
            ("wte.weight", Category::Embedding),
            ("block[3]/norm1/weight", Category::Norm),
            ("head/weight", Category::Output),
            ("lm_head.bias", Category::Output),
            ("stem/weight", Category::Other),
            // Only whole words count.
            ("overhead/attentive", Category::Other),
            ("", Category::Other),
        ] {
            assert_eq!(Category::of(path), want, "{path}");
        }
    }
}
