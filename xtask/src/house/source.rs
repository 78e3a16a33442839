//! Rust source as the checks see it: the tree of modules, what each imports, and flat tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Item, UseTree};

/// A token, with groups flattened.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Word(String),
    /// The value of a string literal.
    Text(String),
    Mark(char),
    Open(char),
    Close(char),
    Other,
}

impl Token {
    pub fn word(&self) -> Option<&str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, word: &str) -> bool {
        self.word() == Some(word)
    }
}

/// One imported name, or one glob (`name` is empty).
#[derive(Debug)]
pub struct Import {
    pub name: String,
    pub path: Vec<String>,
    pub public: bool,
}

/// A module: a file, or a part of one.
#[derive(Debug)]
pub struct Module {
    pub file: usize,
    pub imports: Vec<Import>,
    pub items: BTreeSet<String>,
    /// All but the `use` and `mod` items.
    pub code: Vec<Token>,
}

/// The modules of one crate, without its tests and its documentation.
#[derive(Debug, Default)]
pub struct Tree {
    pub files: Vec<PathBuf>,
    pub modules: BTreeMap<Vec<String>, Module>,
}

impl Tree {
    /// Reads a crate from its root file. `read` gives a file's text, or `None` where there is none.
    pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.file(root, root.parent().context("a folder")?, Vec::new(), read)?;
        Ok(tree)
    }

    fn file(
        &mut self,
        path: &Path,
        folder: &Path,
        module: Vec<String>,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let text = read(path).with_context(|| format!("no file {}", path.display()))?;
        let parsed = parse(&text, true).with_context(|| format!("in {}", path.display()))?;
        self.files.push(path.to_path_buf());
        self.module(self.files.len() - 1, folder, module, parsed.items, read)
    }

    fn module(
        &mut self,
        file: usize,
        folder: &Path,
        path: Vec<String>,
        items: Vec<Item>,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let (mut imports, mut names) = (Vec::new(), BTreeSet::new());
        let mut code = Vec::new();
        for item in items.into_iter().flat_map(expanded) {
            match item {
                Item::Use(item) => {
                    let public = !matches!(item.vis, syn::Visibility::Inherited);
                    flatten_use(&item.tree, &mut Vec::new(), public, &mut imports);
                }
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let child = [path.clone(), vec![name.clone()]].concat();
                    ensure!(
                        !item.attrs.iter().any(|a| a.path().is_ident("path")),
                        "the module {name} has a #[path]: the checks do not follow it"
                    );
                    let below = folder.join(&name);
                    match item.content {
                        Some((_, items)) => self.module(file, &below, child, items, read)?,
                        None => {
                            let places = [below.with_extension("rs"), below.join("mod.rs")];
                            let found = places.iter().find(|p| read(p).is_some());
                            let Some(found) = found else { bail!("no file for mod {name}") };
                            self.file(found, &below, child, read)?;
                        }
                    }
                }
                item => {
                    names.extend(name_of(&item));
                    flatten(item.to_token_stream(), &mut code);
                }
            }
        }
        self.modules.insert(path, Module { file, imports, items: names, code });
        Ok(())
    }
}

/// Parses a file, and leaves out its documentation and, if asked, what only tests have.
fn parse(text: &str, without_tests: bool) -> Result<syn::File> {
    let mut file = syn::parse_file(text)?;
    Strip { tests: without_tests }.visit_file_mut(&mut file);
    Ok(file)
}

/// A file's tokens without its documentation, with or without what only tests have.
pub fn tokens(text: &str, without_tests: bool) -> Result<Vec<Token>> {
    let mut out = Vec::new();
    let file = parse(text, without_tests)?;
    file.items.iter().for_each(|item| flatten(item.to_token_stream(), &mut out));
    Ok(out)
}

/// The attributes of a whole file (`#![deny(unsafe_code)]`), as tokens.
pub fn inner_attributes(text: &str) -> Result<Vec<Vec<Token>>> {
    let flat = |a: &Attribute| {
        let mut out = Vec::new();
        flatten(a.meta.to_token_stream(), &mut out);
        out
    };
    Ok(syn::parse_file(text)?.attrs.iter().map(flat).collect())
}

struct Strip {
    tests: bool,
}

fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|a| {
        let text = a.meta.to_token_stream().to_string().replace(' ', "");
        text == "test" || text.starts_with("cfg(test)") || text.starts_with("cfg(all(test")
    })
}

fn attributes(item: &Item) -> Vec<Attribute> {
    let outer = |input: ParseStream<'_>| {
        let attributes = Attribute::parse_outer(input)?;
        input.parse::<TokenStream>().map(|_| attributes)
    };
    outer.parse2(item.to_token_stream()).unwrap_or_default()
}

impl Strip {
    fn items(&self, items: &mut Vec<Item>) {
        if self.tests {
            items.retain(|item| !is_test(&attributes(item)));
        }
    }
}

impl VisitMut for Strip {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        self.items(&mut file.items);
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            self.items(items);
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        if self.tests {
            item.items.retain(|i| !matches!(i, syn::ImplItem::Fn(f) if is_test(&f.attrs)));
        }
        visit_mut::visit_item_impl_mut(self, item);
    }

    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        attrs.retain(|a| !a.path().is_ident("doc"));
    }
}

/// The item, or what a macro that declares modules (`kernel_files!`) makes: its items, and imports of
/// the modules, whose contents it lists.
fn expanded(item: Item) -> Vec<Item> {
    let Item::Macro(call) = &item else { return vec![item] };
    let Ok(file) = call.mac.parse_body::<syn::File>() else { return vec![item] };
    let uses = file.items.iter().filter_map(|i| match i {
        Item::Mod(module) => Some(&module.ident),
        _ => None,
    });
    let uses: Vec<Item> = uses.map(|name| syn::parse_quote!(use self::#name::*;)).collect();
    if uses.is_empty() { vec![item] } else { [file.items, uses].concat() }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn flatten_use(tree: &UseTree, path: &mut Vec<String>, public: bool, out: &mut Vec<Import>) {
    let mut push = |name: String, path: Vec<String>| out.push(Import { name, path, public });
    match tree {
        UseTree::Path(p) => {
            path.push(p.ident.to_string());
            flatten_use(&p.tree, path, public, out);
            path.pop();
        }
        UseTree::Name(n) if n.ident == "self" => {
            push(path.last().cloned().unwrap_or_default(), path.clone());
        }
        UseTree::Name(n) => {
            let name = n.ident.to_string();
            push(name.clone(), [&path[..], &[name]].concat());
        }
        UseTree::Rename(r) if r.ident == "self" => push(r.rename.to_string(), path.clone()),
        UseTree::Rename(r) => {
            push(r.rename.to_string(), [&path[..], &[r.ident.to_string()]].concat());
        }
        UseTree::Glob(_) => push(String::new(), path.clone()),
        UseTree::Group(g) => g.items.iter().for_each(|t| flatten_use(t, path, public, out)),
    }
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Ident(ident) => out.push(Token::Word(ident.to_string())),
            TokenTree::Punct(mark) => out.push(Token::Mark(mark.as_char())),
            TokenTree::Literal(literal) => {
                let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                out.push(text.map_or(Token::Other, |t| Token::Text(t.value())));
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ('(', ')'),
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::None => (' ', ' '),
                };
                out.push(Token::Open(open));
                flatten(group.stream(), out);
                out.push(Token::Close(close));
            }
        }
    }
}

/// Whether a line has more on it than a comment.
pub fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}
