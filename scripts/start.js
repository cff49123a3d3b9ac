// `npm start`: trains on the MNIST digits, in runs/mnist; where a run is already, beside it, in runs/mnist-2 and so on. Whoever says
// what to do with the folder (--output, --resume, --overwrite) gets that: `npm start -- --resume` goes on with runs/mnist.
import { existsSync, readdirSync } from 'node:fs';
import { fileURLToPath, URL } from 'node:url';

const given = process.argv.slice(2);
const decides = ['--output', '--resume', '--overwrite', '--help'];
const isDecided = given.some((word) => decides.some((name) => word === name || word.startsWith(`${name}=`)));

function freeFolder() {
  for (let number = 1; ; number++) {
    const folder = number === 1 ? 'runs/mnist' : `runs/mnist-${number}`;
    if (!existsSync(folder) || readdirSync(folder).length === 0) return folder;
  }
}

// As if it had been called that way: workers are started by the same words.
const program = fileURLToPath(new URL('../bin/tributary.js', import.meta.url));
process.argv.splice(
  1,
  Infinity,
  program,
  'train',
  'mnist',
  ...(isDecided ? [] : ['--output', freeFolder()]),
  ...given,
);
await import(new URL('../bin/tributary.js', import.meta.url).href);
