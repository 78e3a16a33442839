//! Graphs: lists of edges, and what a lock file of Cargo says.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::error::Error;
use std::io::BufRead;

use ndarray::{Array1, Array2};
use toml::de::{DeTable, DeValue};

/// Characters of a wrong line that are shown.
const SHOWN: usize = 40;

#[derive(Debug)]
pub struct Graph {
    /// The name of each node.
    pub names: Vec<String>,
    /// From one node to another: none to itself, none twice.
    pub links: Vec<(usize, usize)>,
}

impl Graph {
    fn new(names: Vec<String>, mut links: Vec<(usize, usize)>) -> Result<Graph, Box<dyn Error>> {
        links.retain(|(from, to)| from != to);
        links.sort_unstable();
        links.dedup();
        if links.is_empty() {
            return Err("there is no link from one node to another".into());
        }
        Ok(Graph { names, links })
    }

    /// Each package of a lock file, with a link to each package that it depends on.
    pub fn of_lock(text: &str) -> Result<Graph, Box<dyn Error>> {
        let table = DeTable::parse(text).map_err(|e| {
            let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!("line {line}: {}", e.message())
        })?;
        let packages = table.get_ref().get("package").and_then(|of| of.get_ref().as_array());
        let packages = packages.ok_or("no lock file of Cargo: it has no packages")?;
        let mut all = Vec::new();
        for package in packages {
            let of = |key| package.get_ref().get(key).map(|value| value.get_ref());
            let name = of("name").and_then(DeValue::as_str).ok_or("a package without a name")?;
            let version = of("version").and_then(DeValue::as_str).unwrap_or_default();
            let source = of("source").and_then(DeValue::as_str).unwrap_or_default();
            let needs = of("dependencies").and_then(DeValue::as_array);
            all.push((name, version, source, needs));
        }
        // A dependency is written as shortly as it is clear: the name, the version, the source.
        let mut known = HashMap::new();
        let mut versions: HashMap<&str, usize> = HashMap::new();
        for (index, &(name, version, source, _)) in all.iter().enumerate() {
            *versions.entry(name).or_default() += 1;
            known.insert(name.to_owned(), index);
            known.insert(format!("{name} {version}"), index);
            known.insert(format!("{name} {version} ({source})"), index);
        }
        let mut links = Vec::new();
        for (index, &(name, _, _, needs)) in all.iter().enumerate() {
            for need in needs.into_iter().flat_map(|needs| needs.iter()) {
                let need = need.get_ref().as_str().unwrap_or_default();
                let to = known.get(need);
                let to = to.ok_or_else(|| format!("{name} needs {need:?}, which is not there"))?;
                links.push((index, *to));
            }
        }
        let names = all.iter().map(|&(name, version, ..)| match versions[name] {
            1 => name.to_owned(),
            _ => format!("{name} {version}"),
        });
        Graph::new(names.collect(), links)
    }

    /// A list of edges as the SNAP data sets have it: two numbers a line, and comments after `#`.
    pub fn of_edges(text: impl BufRead) -> Result<Graph, Box<dyn Error>> {
        let (mut names, mut known) = (Vec::new(), HashMap::new());
        let mut links = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.map_err(|e| format!("line {}: {e}", index + 1))?;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let ends: Option<Vec<u64>> =
                line.split_whitespace().map(|word| word.parse().ok()).collect();
            let Some([from, to]) = ends.as_deref() else {
                let line: String = line.chars().take(SHOWN).collect();
                return Err(format!("line {}: {line:?} is not two numbers", index + 1).into());
            };
            let mut node = |id: u64| {
                *known.entry(id).or_insert_with(|| {
                    names.push(id.to_string());
                    names.len() - 1
                })
            };
            links.push((node(*from), node(*to)));
        }
        Graph::new(names, links)
    }

    /// The `most` nodes with the most links from and to them, and the links among these.
    pub fn densest(self, most: usize) -> Graph {
        let mut degrees = vec![0usize; self.names.len()];
        for &(from, to) in &self.links {
            degrees[from] += 1;
            degrees[to] += 1;
        }
        let mut kept: Vec<usize> = (0..degrees.len()).collect();
        kept.sort_by_key(|&node| (Reverse(degrees[node]), node));
        kept.truncate(most);
        kept.sort_unstable();
        let names = kept.iter().map(|&node| self.names[node].clone()).collect();
        let place = |node| kept.binary_search(&node).ok();
        let links = self.links.iter().filter_map(|&(from, to)| Some((place(from)?, place(to)?)));
        let links = links.collect();
        Graph { names, links }
    }

    /// The links from each node, as numbers.
    pub fn out_degrees(&self) -> Array1<f64> {
        let mut degrees = Array1::zeros(self.names.len());
        self.links.iter().for_each(|&(from, _)| degrees[from] += 1.0);
        degrees
    }

    /// 1 in row `to` and column `from` of each link, else 0. A node without links links to all.
    pub fn matrix(&self) -> Array2<f32> {
        let n = self.names.len();
        let mut a = Array2::zeros((n, n));
        self.links.iter().for_each(|&(from, to)| a[[to, from]] = 1.0);
        for (node, &degree) in self.out_degrees().iter().enumerate() {
            if degree == 0.0 {
                a.column_mut(node).fill(1.0);
            }
        }
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_a_graph() {
        let text = r#"
            version = 4
            [[package]]
            name = "a"
            version = "0.1.0"
            dependencies = ["b 1.0.0", "b 2.0.0", "c"]
            [[package]]
            name = "b"
            version = "1.0.0"
            source = "registry"
            dependencies = ["d 1.0.0 (git)"]
            [[package]]
            name = "b"
            version = "2.0.0"
            source = "registry"
            [[package]]
            name = "c"
            version = "3.0.0"
            [[package]]
            name = "d"
            version = "1.0.0"
            source = "registry"
            [[package]]
            name = "d"
            version = "1.0.0"
            source = "git"
        "#;
        let graph = Graph::of_lock(text).unwrap();
        assert_eq!(graph.names, ["a", "b 1.0.0", "b 2.0.0", "c", "d 1.0.0", "d 1.0.0"]);
        assert_eq!(graph.links, [(0, 1), (0, 2), (0, 3), (1, 5)]);
    }

    #[test]
    fn faults_are_named() {
        let lock = |text: &str| Graph::of_lock(text).unwrap_err().to_string();
        assert!(lock("[[package]]\nname = ").starts_with("line 2: "));
        assert_eq!(lock("a = 1"), "no lock file of Cargo: it has no packages");
        assert_eq!(lock("package = [1]"), "a package without a name");
        let text = "[[package]]\nname = \"a\"\ndependencies = [\"b\"]";
        assert_eq!(lock(text), "a needs \"b\", which is not there");
        let edges = |text: &str| Graph::of_edges(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(edges("# a\n1\t2\n1\tb"), "line 3: \"1\\tb\" is not two numbers");
        assert_eq!(edges("1 2 3"), "line 1: \"1 2 3\" is not two numbers");
        assert_eq!(edges("-1 2"), "line 1: \"-1 2\" is not two numbers");
        for none in ["", "# a\n", "5\t5\n"] {
            assert_eq!(edges(none), "there is no link from one node to another");
        }
    }

    #[test]
    fn the_densest_block_keeps_the_most_links() {
        // 7 has three links, 8 and 9 have two, 1 has one.
        let graph = Graph::of_edges("7 8\n8 9\n9 7\n1 7\n7 8\n".as_bytes()).unwrap();
        assert_eq!((graph.names.len(), graph.links.len()), (4, 4));
        let block = graph.densest(2);
        assert_eq!(block.names, ["7", "8"]);
        assert_eq!(block.links, [(0, 1)]);
        assert_eq!(block.out_degrees().to_vec(), [1.0, 0.0]);
        // 8 links to nothing in the block, so to all of it.
        assert_eq!(block.matrix(), ndarray::array![[0.0, 1.0], [1.0, 1.0]]);
    }
}
