//! One source of each kernel, compiled for several instruction sets; the widest one of the machine runs.
//!
//! Kernels are plain loops with fused multiply-adds in a fixed order, so all forms give the same bits,
//! whatever the tiling, the chunk or the machine.

/// Which form of the kernels is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Plain Rust: what the others are tested against, and the form on other processors.
    Scalar,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// A kernel with its arguments. `run` and all that it calls must be `#[inline(always)]` and free of
/// closures in loops: what is not inlined is compiled without the instruction set.
pub trait Kernel {
    /// What it gives.
    type Out;
    /// The loop; `ROWS` is the number of rows that fit the registers at a time.
    fn run<const ROWS: usize>(self) -> Self::Out;
}

impl Form {
    /// The fastest form that this processor runs.
    pub fn best() -> Self {
        static BEST: std::sync::OnceLock<Form> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Form::Scalar))
    }

    /// All forms that this processor runs, the fastest last.
    #[cfg(target_arch = "x86_64")]
    pub fn available() -> Vec<Self> {
        let mut forms = vec![Form::Scalar];
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            forms.push(Form::Avx2);
            let (f, bw) = (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx512bw"));
            let (dq, vl) = (is_x86_feature_detected!("avx512dq"), is_x86_feature_detected!("avx512vl"));
            if f && bw && dq && vl {
                forms.push(Form::Avx512);
            }
        }
        forms
    }

    /// All forms that this processor runs, the fastest last.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn available() -> Vec<Self> {
        vec![Form::Scalar]
    }

    /// Runs `kernel` in this form, which must come from [`Form::best`] or [`Form::available`].
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Form::Scalar => kernel.run::<2>(),
            // SAFETY: `best` and `available` give this form only where the processor has the features.
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => unsafe { with_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => unsafe { with_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<4>()
}
