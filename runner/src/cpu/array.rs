//! Activations: a row for each token.

/// f32 `[rows, cols]`, row-major.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Array {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Array {
    /// `values` holds `rows * cols` numbers.
    pub fn new(rows: usize, cols: usize, values: Vec<f32>) -> Self {
        debug_assert_eq!(values.len(), rows * cols);
        Array { rows, cols, values }
    }

    /// All zero.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Array::new(rows, cols, vec![0.0; rows * cols])
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All numbers.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All numbers, no longer as rows.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// All numbers.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Row `row`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// Row by row.
    pub fn each_row(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.cols)
    }
}
