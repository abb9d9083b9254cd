//! The `quantization_config` that tells servers what is stored how.

use serde_json::{Value, json};
use verify::codec::int4::Layout;

use super::storage::Storage;

/// The value of `quantization_config`; `skipped` are the modules in 16 bit, one path each.
pub fn quantization(storage: Storage, skipped: &[String]) -> Value {
    let format = storage.format;
    match storage.layout {
        Layout::PackQuantized => {
            let weights = json!({
                "num_bits": format.bits,
                "type": "int",
                "symmetric": format.symmetric,
                "strategy": "group",
                "group_size": format.group,
                "dynamic": false,
            });
            crate::fp8::config::compressed_tensors("pack-quantized", weights, Value::Null, skipped)
        }
        Layout::AwqGemm => json!({
            "quant_method": "awq",
            "bits": format.bits,
            "group_size": format.group,
            "zero_point": true,
            "version": "gemm",
            "modules_to_not_convert": skipped,
        }),
    }
}
