/**
 * One line of progress for a terminal: what to write for a state and a width. Pure; drawing and its rhythm are the
 * reporter's. Invariant: a frame is never wider than the terminal, or it would wrap and leave debris.
 */
import { clock, lossText, thousands } from './format.ts';

export interface ProgressState {
  readonly step: number;
  readonly totalSteps: number;
  /** From 1. */
  readonly epoch: number;
  readonly epochs: number;
  readonly loss: number;
  readonly samplesPerSec: number;
  readonly remainingMs: number;
}

const LONGEST_BAR = 30;
const SHORTEST_BAR = 5;

/** The text of a frame, without control characters. Where it is narrow, the least needed goes first. */
export function renderFrame(state: ProgressState, columns: number): string {
  // The last column stays free, as some terminals wrap when it is filled, and two more for the ^C that they echo.
  const width = Math.max(1, columns > 20 ? columns - 3 : columns - 1);
  const share = state.totalSteps === 0 ? 1 : Math.min(1, state.step / state.totalSteps);
  const percentage = `${Math.floor(100 * share)}%`.padStart(4);
  const parts = [
    `${clock(state.remainingMs)} left`,
    `loss ${lossText(state.loss)}`,
    `epoch ${state.epoch}/${state.epochs}`,
    `${thousands(state.samplesPerSec)} samples/s`,
  ];
  const order = [2, 1, 3, 0];
  for (let kept = parts.length; kept >= 0; kept--) {
    const text = order.filter((part) => part < kept).map((part) => parts[part]!);
    const tail = [percentage, ...text].join('  ');
    const room = width - tail.length - 1;
    if (room >= SHORTEST_BAR) return `${bar(share, Math.min(LONGEST_BAR, room))} ${tail}`;
    if (kept === 0) return percentage.trim().slice(0, width);
  }
  return '';
}

const EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/** A bar that moves by eighths of a character. */
export function bar(share: number, width: number): string {
  const eighths = Math.round(Math.min(1, Math.max(0, share)) * width * 8);
  const filled = '█'.repeat(Math.floor(eighths / 8)) + EIGHTHS[eighths % 8]!;
  return filled + '░'.repeat(width - filled.length);
}
