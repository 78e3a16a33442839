//! torch's tensors, by DLPack 1.3's table of C functions: it lends a tensor without a capsule, tells the current stream,
//! and allocates a result as torch does. A torch without the table is asked by its methods.
//!
//! The functions do not look at what `__dlpack__` refuses, so this does: gradients, negative views, subclasses.

use std::ffi::{c_char, c_int, c_void};

use gemv::Device;
use gemv::unstable::Dtype;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyNotImplementedError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use super::cuda;
use super::dlpack::{DlDevice, DlTensor, DlType, Versioned, elsewhere};
use super::place::{Address, Library, Operand, Place, Plain, check_address, no_such_type};
use crate::errors;
use crate::layout::{Layout, MAX_AXES, check_axes};

/// DLPack's device of CUDA.
const CUDA: i32 = 2;

type Refusal = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

#[repr(C)]
pub struct Table {
    major: u32,
    minor: u32,
    older: *mut c_void,
    allocate: Option<
        unsafe extern "C" fn(
            *mut DlTensor,
            *mut *mut Versioned,
            *mut c_void,
            Option<Refusal>,
        ) -> c_int,
    >,
    own: Option<unsafe extern "C" fn(*mut c_void, *mut *mut Versioned) -> c_int>,
    to_python: Option<unsafe extern "C" fn(*mut Versioned, *mut *mut c_void) -> c_int>,
    borrow: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: functions that any thread may call with the interpreter attached; the table is never freed.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// What is known of torch once it is imported.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    /// `None` in a torch of before the table.
    table: Option<&'static Table>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// Torch, if the object is a tensor of it.
#[inline]
pub fn torch(a: &Bound<'_, PyAny>) -> PyResult<Option<&'static Torch>> {
    let py = a.py();
    if let Some(torch) = TORCH.get(py) {
        let class = a.get_type();
        let own = class.is(&torch.tensor) || class.is(&torch.parameter);
        return Ok((own || a.is_instance(torch.tensor.bind(py))?).then_some(torch));
    }
    find(a)
}

/// Looks for torch among the modules that are imported: an object of it cannot come from elsewhere.
#[cold]
fn find(a: &Bound<'_, PyAny>) -> PyResult<Option<&'static Torch>> {
    let py = a.py();
    let modules = PyModule::import(py, "sys")?.getattr("modules")?;
    let Ok(module) = modules.get_item("torch") else { return Ok(None) };
    // While torch is being imported it has no tensors yet.
    let Ok(tensor) = module.getattr("Tensor") else { return Ok(None) };
    let tensor = tensor.cast_into::<PyType>().map_err(PyErr::from)?;
    if !a.is_instance(&tensor)? {
        return Ok(None);
    }
    let parameter =
        module.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>().map_err(PyErr::from)?;
    let table = tensor.getattr("__dlpack_c_exchange_api__").ok().and_then(|capsule| {
        // SAFETY: a capsule; by another name, or of another object, it is null and an error that is taken away.
        let at =
            unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
        let _ = PyErr::take(py);
        // SAFETY: null, or a table that DLPack says is never freed.
        unsafe { at.cast::<Table>().as_ref() }.filter(|table| table.major == 1)
    });
    let torch = Torch { tensor: tensor.unbind(), parameter: parameter.unbind(), table };
    Ok(Some(TORCH.get_or_init(py, || torch)))
}

impl Torch {
    /// A tensor, borrowed. With `refuse_gradients`, one that needs gradients is refused: the result would have none.
    pub fn operand<'py>(
        &self,
        a: &Bound<'py, PyAny>,
        name: &str,
        refuse_gradients: bool,
    ) -> PyResult<Operand<'py>> {
        let py = a.py();
        let class = a.get_type();
        if !class.is(&self.tensor) && !class.is(&self.parameter) {
            return Err(errors::kind(format!(
                "{name} is a {}, a subclass of torch.Tensor that may keep its entries elsewhere: pass a plain tensor",
                class.fully_qualified_name()?
            )));
        }
        if refuse_gradients && a.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
            return Err(errors::kind(format!(
                "{name} is a tensor that needs gradients, which this product would lose: \
                 use torch.ops.gemv.mv or mm (import gemv.torch), or pass {name}.detach()"
            )));
        }
        if a.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Err(errors::value(format!(
                "{name} is a negative view, whose entries are not those in memory: pass {name}.resolve_neg()"
            )));
        }
        let Borrowed { at, dtype, layout, device: of } = match self.table {
            Some(table) => self.borrow(table, a, name)?,
            None => self.ask(a, name)?,
        };
        let library = Library::Torch(a.clone());
        if of.is_host() {
            check_address(name, at, dtype, &layout)?;
            let place = Place::Host { at: Address(at), writable: true };
            return Ok(Operand { layout, dtype, place, device: None, library });
        }
        if of.kind != CUDA {
            return Err(elsewhere(name, of));
        }
        let device = cuda::on_stream(py, of.ordinal as usize, self.stream(py, of)?)?;
        let place = cuda::adopt(name, &device, at as usize, dtype, &layout, true)?;
        Ok(Operand { layout, dtype, place, device: Some(device), library })
    }

    /// A tensor by the table.
    #[inline]
    fn borrow(&self, table: &Table, a: &Bound<'_, PyAny>, name: &str) -> PyResult<Borrowed> {
        let mut tensor = std::mem::MaybeUninit::<DlTensor>::uninit();
        let borrow =
            table.borrow.ok_or_else(|| PyBufferError::new_err("torch lends no tensors"))?;
        // SAFETY: a tensor, and a place that the function fills in if it returns 0.
        if unsafe { borrow(a.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            let why = PyErr::fetch(a.py());
            // In our words where they are known.
            self.check(a, name)?;
            return Err(why);
        }
        // SAFETY: it was filled in.
        let tensor = unsafe { tensor.assume_init() };
        if !tensor.device.is_host() && tensor.device.kind != CUDA || tensor.dtype_is_complex() {
            self.check(a, name)?;
        }
        let (dtype, layout, at) = tensor.read(name, ".to(torch.float64)")?;
        Ok(Borrowed { at, dtype, layout, device: tensor.device })
    }

    /// A tensor by its methods.
    #[cold]
    fn ask(&self, a: &Bound<'_, PyAny>, name: &str) -> PyResult<Borrowed> {
        self.check(a, name)?;
        let kind = a.getattr("dtype")?.str()?.to_string();
        let kind = kind.trim_start_matches("torch.");
        let dtype = Dtype::ALL.into_iter().find(|of| of.numpy_name() == kind);
        let dtype = dtype.ok_or_else(|| no_such_type(name, kind, ".to(torch.float64)"))?;
        let dim: Vec<usize> = a.getattr("shape")?.extract()?;
        check_axes(name, dim.len())?;
        let strides: Vec<isize> = a.call_method0("stride")?.extract()?;
        let at: usize = a.call_method0("data_ptr")?.extract()?;
        let of = a.getattr("device")?;
        let kind = match of.getattr("type")?.extract::<String>()?.as_str() {
            "cpu" => 1,
            "cuda" => CUDA,
            _ => 0,
        };
        let ordinal = of.getattr("index")?.extract::<Option<i32>>()?.unwrap_or(0);
        let layout = Layout::new(dim.into_iter().zip(strides));
        Ok(Borrowed { at: at as *mut u8, dtype, layout, device: DlDevice { kind, ordinal } })
    }

    /// The stream that torch's work on a GPU goes to.
    fn stream(&self, py: Python<'_>, of: DlDevice) -> PyResult<usize> {
        if let Some(current) = self.table.and_then(|table| table.stream) {
            let mut stream = std::ptr::null_mut();
            // SAFETY: a device that torch has a tensor on, and a place for the stream.
            if unsafe { current(of.kind, of.ordinal, &mut stream) } != 0 {
                return Err(PyErr::fetch(py));
            }
            return Ok(stream as usize);
        }
        let torch = PyModule::import(py, intern!(py, "torch"))?;
        let stream = torch.getattr("cuda")?.call_method1("current_stream", (of.ordinal,))?;
        stream.getattr("cuda_stream")?.extract()
    }

    /// Refuses tensors whose entries are not in memory, or not as they are there.
    #[cold]
    fn check(&self, a: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
        if a.getattr("is_meta")?.is_truthy()? {
            return Err(errors::value(format!("{name} is a meta tensor, which has no entries")));
        }
        if a.getattr("layout")?.str()? != "torch.strided" {
            return Err(errors::kind(format!(
                "{name} is a tensor of {}, and there are products of dense ones: pass {name}.to_dense()",
                a.getattr("layout")?.str()?
            )));
        }
        if a.call_method0("is_conj")?.is_truthy()? {
            return Err(errors::value(format!(
                "{name} is a conjugated view, whose entries are not those in memory: pass {name}.resolve_conj()"
            )));
        }
        Ok(())
    }
}

/// Tensors of which nothing has to be refused, and the result's.
pub struct PlainTensors<'py> {
    pub matrix: Plain,
    pub vector: Plain,
    /// The device of a GPU that they are on.
    pub device: Option<Device>,
    pub y: Bound<'py, PyAny>,
    pub place: Place,
}

/// A matrix and a vector of torch that have a product, with a new tensor for it, by the table; `None` for any others. As
/// NumPy's plain arrays, they take half of the time of the general way. With `refuse_gradients`, tensors that need gradients are
/// others.
pub fn plain<'py>(
    a: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    refuse_gradients: bool,
) -> PyResult<Option<PlainTensors<'py>>> {
    let py = a.py();
    let Some((torch, table)) = TORCH.get(py).and_then(|torch| Some((torch, torch.table?))) else {
        return Ok(None);
    };
    let Some(borrow) = table.borrow else { return Ok(None) };
    let mut lent = [const { std::mem::MaybeUninit::<DlTensor>::uninit() }; 2];
    for (of, tensor) in [a, x].into_iter().zip(&mut lent) {
        let class = of.get_type();
        if !class.is(&torch.tensor) && !class.is(&torch.parameter)
            || refuse_gradients && of.getattr(intern!(py, "requires_grad"))?.is_truthy()?
            || of.call_method0(intern!(py, "is_neg"))?.is_truthy()?
        {
            return Ok(None);
        }
        // SAFETY: as in `borrow`.
        if unsafe { borrow(of.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            // The general way says why.
            drop(PyErr::fetch(py));
            return Ok(None);
        }
    }
    // SAFETY: both were filled in.
    let [matrix, vector] = unsafe { lent.map(|tensor| tensor.assume_init()) };
    let device = matrix.device;
    let (Some(a), Some(x)) = (matrix.plain::<2>(), vector.plain::<1>()) else { return Ok(None) };
    let fits =
        a.1[1] == x.1[0] && !a.1.contains(&0) && a.0.multiplies(x.0) && device == vector.device;
    if !fits || a.0.is_complex() {
        return Ok(None);
    }
    let of = match device {
        _ if device.is_host() => None,
        DlDevice { kind: CUDA, ordinal } => {
            Some(cuda::on_stream(py, ordinal as usize, torch.stream(py, device)?)?)
        }
        _ => return Ok(None),
    };
    let rows = Layout::packed(&a.1[..1]);
    let place = |name, at: *mut u8, dtype, layout: &Layout| match &of {
        None => Ok(Place::Host { at: Address(at), writable: true }),
        Some(device) => cuda::adopt(name, device, at as usize, dtype, layout, true),
    };
    let lay =
        |of: &(Dtype, [usize; 2], [isize; 2], *mut u8)| Layout::new(of.1.into_iter().zip(of.2));
    // Storage of no bytes has no address, whatever the shape says.
    let lies = |of: &(Dtype, [usize; 2], [isize; 2], *mut u8)| {
        check_address("", of.3, of.0, &lay(of)).is_ok()
    };
    if of.is_none() && !(lies(&a) && lies(&x)) {
        return Ok(None);
    }
    let plain = |name, of: &(Dtype, [usize; 2], [isize; 2], *mut u8)| {
        let place = place(name, of.3, of.0, &lay(of))?;
        Ok::<_, PyErr>(Plain { dtype: of.0, place, dim: of.1, strides: of.2 })
    };
    let (matrix, vector) = (plain("a", &a)?, plain("x", &x)?);
    let (y, at) = table.new_tensor(py, device, vector.dtype, &rows)?;
    let place = place("the result", at, vector.dtype, &rows)?;
    Ok(Some(PlainTensors { matrix, vector, device: of, y, place }))
}

/// Whether a product of these tensors may be computed at once where torch asks for its gradients: none is wanted, and nothing of
/// torch stands between the operator and its kernel, such as a mode that records it.
pub fn is_direct(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FUNCTIONS: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    let py = a.py();
    let [grad, modes, transforms] = FUNCTIONS.get_or_try_init(py, || {
        let of = PyModule::import(py, "torch")?.getattr("_C")?;
        let names =
            ["is_grad_enabled", "_len_torch_dispatch_stack", "_are_functorch_transforms_active"];
        let [one, two, three] = names.map(|name| of.getattr(name).map(Bound::unbind));
        Ok::<_, PyErr>([one?, two?, three?])
    })?;
    let says = |function: &Py<PyAny>| function.bind(py).call0()?.is_truthy();
    let needs = |of: &Bound<'_, PyAny>| of.getattr(intern!(py, "requires_grad"))?.is_truthy();
    if (needs(a)? || needs(b)?) && says(grad)? {
        return Ok(false);
    }
    Ok(!says(modes)? && !says(transforms)?)
}

/// Refuses forward-mode differentiation, for which `torch.library` has no rules: it would answer with zeros.
pub fn refuse_forward_mode(py: Python<'_>) -> PyResult<()> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyModule::import(py, "torch.autograd.forward_ad").map(Bound::unbind)
    })?;
    let level = module.bind(py).getattr(intern!(py, "_current_level")).and_then(|of| of.extract());
    // A torch that does not say has no such mode that is known here.
    if level.unwrap_or(-1i64) < 0 {
        return Ok(());
    }
    Err(PyNotImplementedError::new_err(
        "the operators of gemv have no forward-mode derivatives (torch.func.jvp, jacfwd): use torch.autograd",
    ))
}

/// What torch says of a tensor.
struct Borrowed {
    at: *mut u8,
    dtype: Dtype,
    layout: Layout,
    device: DlDevice,
}

/// A new tensor of this shape beside an operand, its place, and its layout: by columns on request.
///
/// torch's allocator gives the memory, in a capture that of the graph.
pub fn new_beside<'py>(
    like: &Operand<'py>,
    x: &Bound<'py, PyAny>,
    dtype: Dtype,
    dim: &Layout,
    by_columns: bool,
) -> PyResult<(Bound<'py, PyAny>, Place, Layout)> {
    let py = x.py();
    let order = if by_columns { Layout::packed(dim.transposed().dim()) } else { *dim };
    let beside = match &like.device {
        None => DlDevice { kind: 1, ordinal: 0 },
        Some(_) => {
            let index = x.getattr(intern!(py, "device"))?.getattr(intern!(py, "index"))?;
            DlDevice { kind: CUDA, ordinal: index.extract()? }
        }
    };
    let table = TORCH.get(py).and_then(|torch| torch.table);
    let (y, at) = match table {
        Some(table) => table.new_tensor(py, beside, dtype, &order)?,
        None => {
            let named = PyDict::new(py);
            let torch = PyModule::import(py, intern!(py, "torch"))?;
            named.set_item("dtype", torch.getattr(dtype.numpy_name())?)?;
            let y = x.call_method("new_empty", (order.dim().to_vec(),), Some(&named))?;
            let y = y.call_method0("detach")?;
            let at: usize = y.call_method0(intern!(py, "data_ptr"))?.extract()?;
            (y, at as *mut u8)
        }
    };
    let place = match &like.device {
        None => Place::Host { at: Address(at), writable: true },
        Some(device) => cuda::adopt("the result", device, at as usize, dtype, &order, true)?,
    };
    if by_columns {
        Ok((y.getattr(intern!(py, "mT"))?, place, order.transposed()))
    } else {
        Ok((y, place, order))
    }
}

impl Table {
    /// A new tensor of this shape, row by row, and its address.
    fn new_tensor<'py>(
        &self,
        py: Python<'py>,
        device: DlDevice,
        dtype: Dtype,
        layout: &Layout,
    ) -> PyResult<(Bound<'py, PyAny>, *mut u8)> {
        let mut shape = [0i64; MAX_AXES];
        shape.iter_mut().zip(layout.dim()).for_each(|(to, &from)| *to = from as i64);
        let mut strides = [0i64; MAX_AXES];
        strides.iter_mut().zip(layout.strides()).for_each(|(to, &from)| *to = from as i64);
        let mut like = DlTensor {
            data: std::ptr::null_mut(),
            device,
            axes: layout.axes() as i32,
            dtype: DlType::new(dtype),
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            offset: 0,
        };
        unsafe extern "C" fn refuse(_: *mut c_void, _: *const c_char, _: *const c_char) {}
        let missing = || PyBufferError::new_err("torch allocates no tensors");
        let allocate = self.allocate.ok_or_else(missing)?;
        let to_python = self.to_python.ok_or_else(missing)?;
        let mut new = std::ptr::null_mut();
        // SAFETY: a description of a tensor, which the function reads, and a place for the new one, which is there if it
        // returns 0. It is then given to a tensor of Python, which owns it.
        unsafe {
            if allocate(&mut like, &mut new, std::ptr::null_mut(), Some(refuse)) != 0 {
                return Err(PyMemoryError::new_err("torch has no memory for the result"));
            }
            let at = (*new).tensor.data.cast::<u8>().wrapping_add((*new).tensor.offset as usize);
            let mut object = std::ptr::null_mut();
            if to_python(new, &mut object) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok((Bound::from_owned_ptr(py, object.cast()), at))
        }
    }
}
