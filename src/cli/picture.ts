/** Small grey images in a terminal: half blocks, so that two rows of pixels share a line of characters. */

/** Five levels of ink for each half are more than a terminal shows; a pixel is inked or not. */
const INK = 0.35;

/** `pixels` from 0 (paper) to 1 (ink), row by row. Empty lines at top and bottom are left out. */
export function drawPicture(pixels: ArrayLike<number>, height: number, width: number): string[] {
  const lines: string[] = [];
  for (let y = 0; y < height; y += 2) {
    let line = '';
    for (let x = 0; x < width; x++) {
      const upper = pixels[y * width + x]! > INK;
      const lower = y + 1 < height && pixels[(y + 1) * width + x]! > INK;
      line += upper ? (lower ? '█' : '▀') : lower ? '▄' : ' ';
    }
    lines.push(line.trimEnd());
  }
  while (lines[0] === '') lines.shift();
  while (lines.at(-1) === '') lines.pop();
  return lines;
}
