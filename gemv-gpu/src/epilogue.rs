//! Programs that add a bias and take a function where they write y.

use gemv_core::{Dtype, Function, Params};

use crate::kernel::Kernel;
use crate::kernels::{FUNCTIONS, STEPS, function_name};
use crate::program::{PRELUDE, Program, of_one_type};

impl Kernel {
    /// Whether there are programs that compute an epilogue where they write y: each entry is written by `finish`, to its place.
    pub fn takes_epilogue(&self) -> bool {
        let elsewhere = ["finish(&", "= narrow(sum"];
        let text = self.source;
        self.ordered && text.contains("finish(y") && !elsewhere.iter().any(|of| text.contains(of))
    }

    /// The program as [`mixed_program`](Self::mixed_program), with a bias and this function in an epilogue: for CUDA, of a kernel that
    /// [takes one](Self::takes_epilogue). Its entry points take what `epilogue.h` says in the place of beta.
    ///
    /// ```
    /// use gemv_core::{Dtype, Function, Params};
    ///
    /// let row = gemv_gpu::kernel("row").unwrap();
    /// let types = (Dtype::Bf16, Dtype::F32);
    /// let program = row.epilogue_program(types, &Params::new("row"), Some(Function::Gelu));
    /// assert!(row.takes_epilogue() && program.source.contains("const EPILOGUE beta"));
    /// assert!(program.defines.contains(&("FUNCTION".into(), "fn_gelu".into())));
    /// ```
    pub fn epilogue_program(
        &self,
        types: (Dtype, Dtype),
        params: &Params,
        function: Option<Function>,
    ) -> Program {
        let Program { source, mut defines } = self.mixed_program(types, params);
        let rest = source.strip_prefix(&prelude(types)).expect("the prelude first");
        let rest = rest.replace("const ACC beta", "const EPILOGUE beta");
        let prelude = prelude(types).replace("const ACC beta", "const EPILOGUE beta");
        let source = [&prelude, STEPS, FUNCTIONS, EPILOGUE, &rest].concat();
        defines.extend(function.map(|of| ("FUNCTION".to_string(), function_name(of).to_string())));
        Program { source, defines }
    }
}

/// The prelude as a program of these types has it.
fn prelude((matrix, vectors): (Dtype, Dtype)) -> String {
    if matrix == vectors { of_one_type(PRELUDE) } else { PRELUDE.to_string() }
}

/// What stands between the prelude and a kernel that takes an epilogue.
const EPILOGUE: &str = include_str!("kernels/epilogue.h");
