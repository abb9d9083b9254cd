//! One kernel source compiled for several instruction sets, the widest that this machine has chosen at run
//! time. Kernels are plain loops over fixed numbers of lanes, so every set gives the same bits.

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// What every machine of the target has.
    Baseline,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// A kernel with its arguments. `run` must be `#[inline(always)]`, as must all that it calls.
pub(crate) trait Kernel {
    /// What it gives.
    type Out;
    /// The loop.
    fn run(self) -> Self::Out;
}

impl Tier {
    /// All sets of this machine, the widest last.
    #[cfg(target_arch = "x86_64")]
    pub fn all() -> Vec<Tier> {
        let mut tiers = vec![Tier::Baseline];
        if is_x86_feature_detected!("avx2") {
            tiers.push(Tier::Avx2);
        }
        if ["f", "bw", "dq", "vl"].iter().all(|f| avx512(f)) {
            tiers.push(Tier::Avx512);
        }
        tiers
    }

    /// All sets of this machine, the widest last.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn all() -> Vec<Tier> {
        vec![Tier::Baseline]
    }

    /// The widest set.
    pub fn best() -> Tier {
        static BEST: std::sync::OnceLock<Tier> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Tier::all().pop().unwrap_or(Tier::Baseline))
    }

    /// Runs `kernel` with this set, which must come from [`Tier::all`] or [`Tier::best`].
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Tier::Baseline => kernel.run(),
            // SAFETY: the value comes from `all` or `best`, which detected the features on this machine.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => unsafe { with_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => unsafe { with_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512(part: &str) -> bool {
    match part {
        "f" => is_x86_feature_detected!("avx512f"),
        "bw" => is_x86_feature_detected!("avx512bw"),
        "dq" => is_x86_feature_detected!("avx512dq"),
        _ => is_x86_feature_detected!("avx512vl"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run()
}
