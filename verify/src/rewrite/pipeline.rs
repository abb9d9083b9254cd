//! Work done by many threads, taken in order, with a bounded number of results in flight.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::error::Result;

struct State<T> {
    next: usize,
    taken: usize,
    ready: BTreeMap<usize, Result<T>>,
    ended: bool,
}

/// Runs `make(0..n)` on `threads` threads and hands the results to `take` in order, on the calling thread.
/// The first error in order ends the work and is returned, whatever the threads were doing.
///
/// # Errors
/// The first error of `make` or `take`, in order.
pub(crate) fn ordered<T: Send>(
    threads: usize,
    n: usize,
    make: impl Fn(usize) -> Result<T> + Sync,
    mut take: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let window = threads * 2 + 1;
    let state = Mutex::new(State { next: 0, taken: 0, ready: BTreeMap::new(), ended: false });
    let changed = Condvar::new();
    let lock = || -> MutexGuard<'_, State<T>> { state.lock().unwrap_or_else(|p| p.into_inner()) };
    let wait = |guard| changed.wait(guard).unwrap_or_else(|p| p.into_inner());
    let end = || {
        lock().ended = true;
        changed.notify_all();
    };
    let worker = || {
        // A panic is a fault of ours; it must not leave the others waiting for ever.
        let on_panic = EndOnPanic(&end);
        loop {
            let mut s = lock();
            while !s.ended && s.next < n && s.next >= s.taken + window {
                s = wait(s);
            }
            if s.ended || s.next >= n {
                break;
            }
            let i = s.next;
            s.next += 1;
            drop(s);
            let made = make(i);
            lock().ready.insert(i, made);
            changed.notify_all();
        }
        drop(on_panic);
    };
    let mut take_all = || -> Result<()> {
        for i in 0..n {
            let mut s = lock();
            let made = loop {
                match s.ready.remove(&i) {
                    Some(made) => break made,
                    None if s.ended => panic!("a worker ended without a result"),
                    None => s = wait(s),
                }
            };
            s.taken = i + 1;
            drop(s);
            changed.notify_all();
            take(i, made?)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
        let on_panic = EndOnPanic(&end);
        let result = take_all();
        drop(on_panic);
        end();
        result
    })
}

struct EndOnPanic<'a, F: Fn()>(&'a F);

impl<F: Fn()> Drop for EndOnPanic<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn results_come_in_order_with_any_thread_count() {
        for threads in [1, 2, 7] {
            let mut seen = Vec::new();
            ordered(
                threads,
                100,
                |i| Ok(i * i),
                |i, v| {
                    seen.push((i, v));
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(seen, (0..100).map(|i| (i, i * i)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn first_error_in_order_is_the_one_returned() {
        for _ in 0..20 {
            let make = |i| if i >= 5 { Err(Error::input(format!("{i}"))) } else { Ok(i) };
            let e = ordered(4, 100, make, |_, _| Ok(())).unwrap_err();
            assert_eq!(e.what(), "5");
        }
    }

    #[test]
    #[should_panic]
    fn panic_of_a_worker_ends_the_work() {
        let _ = ordered(3, 1000, |i| if i == 50 { panic!("fault") } else { Ok(i) }, |_, _| Ok(()));
    }

    #[test]
    #[should_panic]
    fn panic_of_the_taker_ends_the_work() {
        let _ = ordered(3, 1000, Ok, |i, _| if i == 50 { panic!("fault") } else { Ok(()) });
    }

    #[test]
    fn error_of_the_taker_ends_the_work() {
        let e = ordered(3, 1000, Ok, |i, _| if i == 7 { Err(Error::input("stop")) } else { Ok(()) });
        assert_eq!(e.unwrap_err().what(), "stop");
    }
}
