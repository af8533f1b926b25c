//! Values at places of texts, found by the tokens that lead there.

use std::collections::BTreeMap;

/// A tree whose edges are runs of tokens: what texts have in common is stored once.
///
/// Nodes are numbered, and one that holds a value keeps its number until the value is removed.
#[derive(Debug)]
pub(crate) struct Radix<T> {
    /// `None` for numbers that are free.
    nodes: Vec<Option<Node<T>>>,
    free: Vec<NodeId>,
}

pub(crate) type NodeId = usize;

#[derive(Debug)]
struct Node<T> {
    parent: NodeId,
    /// Tokens from the parent to here; none at the root alone.
    edge: Vec<u32>,
    /// By the first token of their edges.
    children: BTreeMap<u32, NodeId>,
    value: Option<T>,
}

/// What is known of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Its first tokens that some path of the tree has too.
    pub(crate) shared: usize,
    /// Nodes with values on its path, with the tokens before each; the nearest to the root first.
    pub(crate) found: Vec<(usize, NodeId)>,
}

const ROOT: NodeId = 0;

impl<T> Radix<T> {
    pub(crate) fn new() -> Self {
        let root = Node { parent: ROOT, edge: Vec::new(), children: BTreeMap::new(), value: None };
        Self { nodes: vec![Some(root)], free: Vec::new() }
    }

    /// Follows a text as far as the tree knows it.
    pub(crate) fn walk(&self, tokens: &[u32]) -> Walk {
        let mut walk = Walk::default();
        let mut id = ROOT;
        loop {
            if self.node(id).value.is_some() {
                walk.found.push((walk.shared, id));
            }
            let rest = &tokens[walk.shared..];
            let Some(&child) = rest.first().and_then(|token| self.node(id).children.get(token)) else { return walk };
            let common = common_len(&self.node(child).edge, rest);
            walk.shared += common;
            if common < self.node(child).edge.len() {
                return walk;
            }
            id = child;
        }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&T> {
        self.nodes.get(id)?.as_ref()?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut T> {
        self.nodes.get_mut(id)?.as_mut()?.value.as_mut()
    }

    /// Puts a value at the end of `tokens`; gives its node and the value that was there before.
    pub(crate) fn insert(&mut self, tokens: &[u32], value: T) -> (NodeId, Option<T>) {
        let mut id = ROOT;
        let mut rest = tokens;
        while let Some(first) = rest.first() {
            id = match self.node(id).children.get(first).copied() {
                Some(child) => {
                    let common = common_len(&self.node(child).edge, rest);
                    rest = &rest[common..];
                    if common < self.node(child).edge.len() { self.split(child, common) } else { child }
                }
                None => {
                    let leaf =
                        self.add(Node { parent: id, edge: rest.to_vec(), children: BTreeMap::new(), value: None });
                    self.node_mut(id).children.insert(*first, leaf);
                    rest = &[];
                    leaf
                }
            };
        }
        let before = self.node_mut(id).value.replace(value);
        (id, before)
    }

    /// Takes a value out, with the tokens that nothing else needs.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<T> {
        let value = self.nodes.get_mut(id)?.as_mut()?.value.take();
        let mut id = id;
        while id != ROOT && self.node(id).value.is_none() {
            let parent = self.node(id).parent;
            match self.node(id).children.len() {
                0 => self.prune(id),
                1 => {
                    self.join(id);
                    break;
                }
                _ => break,
            }
            id = parent;
        }
        value
    }

    /// Whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.node(ROOT).children.is_empty() && self.node(ROOT).value.is_none()
    }

    /// All tokens that lead to a node.
    #[cfg(test)]
    pub(crate) fn path(&self, mut id: NodeId) -> Vec<u32> {
        let mut edges = Vec::new();
        while id != ROOT {
            edges.push(&self.node(id).edge[..]);
            id = self.node(id).parent;
        }
        edges.into_iter().rev().flatten().copied().collect()
    }

    /// Puts a node after the first `len` tokens of the edge to `child`.
    fn split(&mut self, child: NodeId, len: usize) -> NodeId {
        let Node { parent, edge, .. } = self.node_mut(child);
        let (parent, rest) = (*parent, edge.split_off(len));
        let front = std::mem::replace(edge, rest);
        let (first, second) = (front[0], self.node(child).edge[0]);
        let middle = self.add(Node { parent, edge: front, children: BTreeMap::from([(second, child)]), value: None });
        self.node_mut(child).parent = middle;
        self.node_mut(parent).children.insert(first, middle);
        middle
    }

    /// Takes out a node without children.
    fn prune(&mut self, id: NodeId) {
        let Node { parent, edge, .. } = self.take(id);
        self.node_mut(parent).children.remove(&edge[0]);
    }

    /// Takes out a node with one child, whose edge becomes longer.
    fn join(&mut self, id: NodeId) {
        let Node { parent, mut edge, children, .. } = self.take(id);
        let child = children.into_values().next().expect("only nodes with one child are joined with it");
        self.node_mut(parent).children.insert(edge[0], child);
        edge.append(&mut self.node_mut(child).edge);
        let node = self.node_mut(child);
        (node.edge, node.parent) = (edge, parent);
    }

    fn add(&mut self, node: Node<T>) -> NodeId {
        match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        }
    }

    fn take(&mut self, id: NodeId) -> Node<T> {
        self.free.push(id);
        self.nodes[id].take().expect("only nodes of the tree are taken out")
    }

    fn node(&self, id: NodeId) -> &Node<T> {
        self.nodes[id].as_ref().expect("links lead to nodes of the tree")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<T> {
        self.nodes[id].as_mut().expect("links lead to nodes of the tree")
    }
}

fn common_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_share_what_they_have_in_common() {
        let mut tree = Radix::new();
        let (long, _) = tree.insert(&[1, 2, 3, 4, 5], "long");
        let (other, _) = tree.insert(&[1, 2, 9], "other");
        let (short, _) = tree.insert(&[1, 2, 3], "short");
        assert_eq!(tree.walk(&[1, 2, 3, 4, 5, 6]), Walk { shared: 5, found: vec![(3, short), (5, long)] });
        assert_eq!(tree.walk(&[1, 2, 3, 7]), Walk { shared: 3, found: vec![(3, short)] });
        assert_eq!(tree.walk(&[1, 2, 3, 4]), Walk { shared: 4, found: vec![(3, short)] });
        assert_eq!(tree.path(other), [1, 2, 9]);
        assert_eq!(tree.insert(&[1, 2, 3], "again"), (short, Some("short")));
        assert_eq!(tree.remove(short), Some("again"));
        assert_eq!(tree.walk(&[1, 2, 3]), Walk { shared: 3, found: Vec::new() });
        assert_eq!((tree.remove(long), tree.remove(long)), (Some("long"), None));
        assert_eq!(tree.walk(&[1, 2, 3]), Walk { shared: 2, found: Vec::new() });
        assert_eq!((tree.remove(other), tree.is_empty()), (Some("other"), true));
    }

    proptest! {
        /// A map from whole texts answers the same questions.
        #[test]
        fn a_tree_knows_what_a_list_of_texts_knows(
            steps in prop::collection::vec((prop::collection::vec(0u32..3, 0..7), any::<bool>()), 0..60),
            asked in prop::collection::vec(prop::collection::vec(0u32..3, 0..8), 0..12),
        ) {
            let (mut tree, mut list) = (Radix::new(), HashMap::new());
            for (number, (text, is_added)) in steps.into_iter().enumerate() {
                if is_added {
                    let (id, before) = tree.insert(&text, number);
                    prop_assert_eq!(tree.path(id), text.clone());
                    prop_assert_eq!(before, list.insert(text, (id, number)).map(|(_, number)| number));
                } else if let Some((id, number)) = list.remove(&text) {
                    prop_assert_eq!(tree.remove(id), Some(number));
                }
                prop_assert_eq!(tree.is_empty(), list.is_empty());
            }
            for text in asked {
                let walk = tree.walk(&text);
                let shared = list.keys().map(|known| common_len(known, &text)).max();
                prop_assert_eq!(walk.shared, shared.unwrap_or(0));
                let expected: Vec<_> = (0..=text.len()).filter_map(|len| Some((len, list.get(&text[..len])?.0))).collect();
                prop_assert_eq!(walk.found, expected);
            }
        }
    }
}
