//! Memory from one product to the next.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use gemv_core::fork::PerProcess;

/// Memory of a product that the next one uses again. Products at the same time have each their own.
#[derive(Debug, Default)]
pub(crate) struct Kept(PerProcess<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Kept {
    pub(crate) fn take<M: Any>(&self) -> Option<M> {
        let mut all = self.0.get().lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.iter().position(|memory| memory.is::<M>())?;
        all.swap_remove(place).downcast().ok().map(|memory| *memory)
    }

    /// Of one type it keeps one.
    pub(crate) fn give<M: Any + Send>(&self, memory: M) {
        let mut all = self.0.get().lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|memory| memory.is::<M>()) {
            all.push(Box::new(memory));
        }
    }
}
