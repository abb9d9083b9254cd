//! Calibration: what goes through the model to find scales by.

pub mod data;
