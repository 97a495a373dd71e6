//! Times molly: `peer_molly FILE ATOMS BUFFERED TIMES [FRAMES]`.
//!
//! ATOMS is `all`, `first:N` or a file of atom indices, BUFFERED is 0 or 1, FRAMES a file of frame
//! numbers to read one by one. The whole is done TIMES times. Prints the seconds of the last time,
//! and the mean of the last frame's chosen positions, in nm.

use std::env::args;
use std::fs::read_to_string;
use std::io::{ErrorKind, Result};
use std::time::Instant;

use molly::selection::AtomSelection;
use molly::{Frame, XTCReader};

fn numbers(path: &str) -> Result<Vec<u32>> {
    let text = read_to_string(path)?;
    Ok(text.split_whitespace().map(|word| word.parse().expect("a number")).collect())
}

fn read(path: &str, atoms: &AtomSelection, buffered: bool, frame: &mut Frame) -> Result<()> {
    let mut reader = XTCReader::open(path)?;
    loop {
        let done = if buffered {
            reader.read_frame_with_selection_buffered(frame, atoms)
        } else {
            reader.read_frame_with_selection(frame, atoms)
        };
        match done {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = args().skip(1).collect();
    let buffered = words[2] == "1";
    let times: u32 = words[3].parse().expect("a number of times");
    let (atoms, chosen) = match words[1].strip_prefix("first:") {
        Some(n) => {
            let n: u32 = n.parse().expect("a number of atoms");
            (AtomSelection::Until(n), Some((0..n).collect()))
        }
        None if words[1] == "all" => (AtomSelection::All, None),
        None => {
            let indices = numbers(&words[1])?;
            (AtomSelection::from_index_list(&indices), Some(indices))
        }
    };
    let mut frame = Frame::default();
    let mut seconds = 0.0;
    if let Some(list) = words.get(4) {
        let frames = numbers(list)?;
        let mut reader = XTCReader::open(&words[0])?;
        let offsets = reader.determine_offsets(None)?;
        for _ in 0..times {
            let begun = Instant::now();
            for &i in &frames {
                reader.read_frame_at_offset::<false>(&mut frame, offsets[i as usize], &atoms)?;
            }
            seconds = begun.elapsed().as_secs_f64();
        }
    } else {
        for _ in 0..times {
            let begun = Instant::now();
            read(&words[0], &atoms, buffered, &mut frame)?;
            seconds = begun.elapsed().as_secs_f64();
        }
    }
    let kept = chosen.as_ref().map_or(frame.positions.len() / 3, Vec::len);
    let sum: f64 = frame.positions.iter().take(3 * kept).map(|&x| f64::from(x)).sum();
    println!("{seconds:.9} {:.9}", sum / (3 * kept) as f64);
    Ok(())
}
