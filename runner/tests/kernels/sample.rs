//! Which token comes next.

use runner::Sampling;
use runner::cuda::launches::{Argmax, Sample};
use runner::sampling::{Sampler, largest};

use super::machine::{Machine, random};

#[test]
fn largest_is_the_cpus() {
    let Some(mut m) = Machine::new() else { return };
    for vocab in [1usize, 31, 1000, 3001] {
        let mut logits = random(4 * vocab, vocab as u64);
        logits[vocab..2 * vocab].iter_mut().for_each(|v| *v = v.round());
        logits[2 * vocab..3 * vocab].fill(f32::NEG_INFINITY);
        logits[3 * vocab] = f32::NAN;
        let (at, ids) = (m.floats(&logits), m.room(16));
        m.run(&Argmax { logits: at, vocab: vocab as u32, sequences: 4, ids }.launch());
        let want: Vec<u32> = logits.chunks(vocab).map(largest).collect();
        assert_eq!(m.read_words(ids), want, "{vocab}");
    }
}

#[test]
fn draws_are_the_cpus() {
    let hot = Sampling { temperature: 0.8, seed: 7, ..Sampling::default() };
    let settings = [
        hot,
        Sampling { top_k: 5, ..hot },
        Sampling { top_p: 0.7, ..hot },
        Sampling { min_p: 0.2, temperature: 2.0, ..hot },
        Sampling { top_k: 20, top_p: 0.9, min_p: 0.01, repetition_penalty: 1.3, ..hot },
    ];
    for how in settings {
        let Some(mut m) = Machine::new() else { return };
        let vocab = 300;
        let prompt = [3u32, 5, 250];
        let mut sampler = Sampler::new(how, &prompt);
        let mut seen = vec![0u8; vocab];
        prompt.iter().for_each(|t| seen[*t as usize] = 1);
        let states = m.longs(&[sampler.state()]);
        let (ranks, weights, ids) = (m.room(vocab * 4), m.room(vocab * 8), m.room(4));
        for draw in 0..12u64 {
            let mut logits: Vec<f32> = random(vocab, 40 + draw).iter().map(|v| v * 5.0).collect();
            if draw % 3 == 0 {
                logits.iter_mut().for_each(|v| *v = v.round());
            }
            let (at, seen_at) = (m.floats(&logits), m.bytes(&seen));
            let (vocab, seen_at) = (vocab as u32, Some(seen_at));
            let launch =
                Sample { logits: at, seen: seen_at, vocab, sequences: 1, how, states, ranks, weights, ids };
            m.run(&launch.launch());
            let want = sampler.next(&logits);
            assert_eq!(m.read_words(ids), [want], "{how:?} draw {draw}");
            assert_eq!(m.read_longs(states), [sampler.state()]);
            seen[want as usize] = 1;
        }
    }
}
