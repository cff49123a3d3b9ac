/**
 * Other users of the machine, and what they can do to segments: nothing. They lock what they can lock, squat names, and look around; as
 * root the test plays them as users of their own, otherwise only what the same user can play.
 */
import { execFileSync, spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hostIdentity } from '../../src/cluster/index.ts';
import {
  currentProcess,
  defaultSegmentDirectory,
  hasSharedMemory,
  removeStaleSegments,
  SharedSpace,
} from '../../src/memory/index.ts';
import { whileFolderLocked } from '../../src/memory/segment-folder.ts';
import { encodeHeader } from '../../src/memory/segment-header.ts';
import { programOf } from '../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('./neighbour-program.ts', import.meta.url));
const SHARED_MEMORY = '/dev/shm';
const isRoot = process.geteuid?.() === 0;
const NOBODY = 65_534;
/** Ids that no account of the machine has. */
const STRANGER = 1_964_321_007;
const asNobody = isRoot ? { uid: NOBODY, gid: NOBODY } : {};

describe.skipIf(!hasSharedMemory())('a neighbour', () => {
  let directory = '';
  const children: ChildProcess[] = [];
  const paths: string[] = [];
  const space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });

  beforeEach(() => {
    directory = fs.mkdtempSync(join(SHARED_MEMORY, 'test-tributary-'));
    paths.push(directory);
  });
  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.stdin!.end();
      if (child.exitCode === null) await once(child, 'exit');
    }
    for (const path of paths.splice(0)) fs.rmSync(path, { recursive: true, force: true });
  });

  /** A process that holds the lock of a folder until its input ends. */
  async function lock(folder: string, user: { uid?: number; gid?: number } = {}): Promise<ChildProcess> {
    const child = spawn('flock', ['--no-fork', folder, 'sh', '-c', 'echo held; exec cat'], {
      stdio: ['pipe', 'pipe', 'inherit'],
      cwd: '/',
      ...user,
    });
    children.push(child);
    await once(child.stdout, 'data');
    return child;
  }

  it('who holds the lock of the shared-memory file system keeps nobody waiting', async () => {
    await lock(SHARED_MEMORY, asNobody);
    const segment = space.createSegment(`unlocked-${process.pid}`, 64);
    segment.close();
    removeStaleSegments();
  });

  it.skipIf(!isRoot)(
    'can neither lock nor list nor open nor make anything (needs root, to be another user)',
    () => {
      const segment = space.createSegment(`private-${process.pid}`, 64);
      const folder = defaultSegmentDirectory();
      const script = `
      const fs = require('node:fs');
      const [folder, file] = process.argv.slice(1);
      const codeOf = (act) => { try { act(); return 'done'; } catch (error) { return error.code; } };
      console.log(JSON.stringify([
        codeOf(() => fs.openSync(folder, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY)),
        codeOf(() => fs.readdirSync(folder)),
        codeOf(() => fs.openSync(file, 'r')),
        codeOf(() => fs.statSync(file)),
        codeOf(() => fs.writeFileSync(folder + '/tributary-trap', '')),
        codeOf(() => fs.renameSync(folder, folder + '-away')),
        codeOf(() => fs.rmdirSync(folder)),
      ]));`;
      const file = join(folder, `tributary-${segment.name}`);
      expect(fs.existsSync(file)).toBe(true);
      const output = execFileSync(process.execPath, ['-e', script, folder, file], {
        encoding: 'utf8',
        cwd: '/',
        ...asNobody,
      });
      expect(JSON.parse(output)).toEqual([
        'EACCES',
        'EACCES',
        'EACCES',
        'EACCES',
        'EACCES',
        'EPERM',
        'EPERM',
      ]);
      segment.close();
    },
  );

  it('cannot know the name under which a segment is written', () => {
    const { pid, startTicks, pidNamespace } = currentProcess();
    fs.mkdirSync(join(directory, `.tributary-new-${pid}-${startTicks}-${pidNamespace}`));
    space.createSegment('unguessed', 64, { directory }).close();
  });

  it('who takes too long is named', async () => {
    const holder = await lock(directory);
    const act = () => whileFolderLocked(directory, () => undefined, { timeoutMs: 0 });
    expect(act).toThrow(expect.objectContaining({ code: 'TIMEOUT' }));
    expect(act).toThrow(`for the lock of ${directory}`);
    expect(act).toThrow(`process ${holder.pid} (cat) holds it`);
  });

  const faults: Record<string, [prepare: (path: string) => void, fault: RegExp]> = {
    'a symbolic link': [
      (path) => {
        fs.mkdirSync(`${path}-real`, 0o700);
        fs.symlinkSync(`${path}-real`, path);
      },
      /is a symbolic link; .*not a link to one/,
    ],
    'a file': [(path) => fs.writeFileSync(path, ''), /is not a folder; remove it/],
    'a folder that others may enter': [
      (path) => {
        fs.mkdirSync(path);
        fs.chmodSync(path, 0o711);
      },
      /is open to other users \(mode 0711\).*run 'chmod 700 /,
    ],
    'a folder that every user can replace': [
      (path) => {
        fs.mkdirSync(path, 0o700);
        fs.chmodSync(join(path, '..'), 0o777);
      },
      /every user can replace it \(mode 0777\); run 'chmod \+t /,
    ],
    ...(isRoot
      ? {
          'a folder of another user': [
            (path: string) => {
              fs.mkdirSync(path, 0o700);
              fs.chownSync(path, NOBODY, NOBODY);
            },
            /belongs to user 65534, and this process runs as user 0; let user 65534 or root remove it/,
          ] as [(path: string) => void, RegExp],
        }
      : {}),
  };
  it.each(Object.keys(faults))('who put there %s is noticed, and the folder refused', (name) => {
    const [prepare, fault] = faults[name]!;
    const path = join(directory, 'folder');
    prepare(path);
    const options = { directory: path };
    // A slash at the end must not follow a link either.
    const attempts = [
      () => space.createSegment('one', 64, options),
      () => space.createSegment('one', 64, { directory: `${path}/` }),
      () => space.attachSegment('one', options),
      () => removeStaleSegments(path),
    ];
    for (const attempt of attempts) {
      expect(attempt).toThrow(expect.objectContaining({ code: 'FOLDER_NOT_PRIVATE' }));
      expect(attempt).toThrow(fault);
    }
  });

  describe.skipIf(!isRoot)('of another user (needs root, to be one)', () => {
    interface Outcome {
      readonly directory: string;
      readonly host: string;
      readonly create: string;
      readonly attach: string;
    }
    const usual = join(SHARED_MEMORY, `tributary-${STRANGER}`);

    function run(): Outcome {
      const segment = space.createSegment('shown', 64, { directory });
      const output = execFileSync(process.execPath, [...programOf(PROGRAM), 'shown', directory], {
        ...{ encoding: 'utf8', cwd: '/', uid: STRANGER, gid: STRANGER },
        env: { ...process.env, HOME: '/', TMPDIR: tmpdir() },
      });
      segment.close();
      return JSON.parse(output) as Outcome;
    }

    it('has a folder of its own, counts as another host, and cannot attach', (context) => {
      if (!isReadableByAll(fileURLToPath(new URL('../..', import.meta.url)))) {
        return context.skip('a repository that other users can read');
      }
      paths.push(usual);
      const outcome = run();
      expect(outcome.directory).toBe(usual);
      expect(outcome.create).toBe('done');
      expect(outcome.attach).toMatch(/^FOLDER_NOT_PRIVATE: .* belongs to user 0/);
      expect(fs.statSync(usual).mode & 0o7777).toBe(0o700);
      expect(outcome.host).not.toBe(hostIdentity());
    });

    it('whose folder somebody else has made is refused by name, or goes where nobody can', (context) => {
      if (!isReadableByAll(fileURLToPath(new URL('../..', import.meta.url)))) {
        return context.skip('a repository that other users can read');
      }
      paths.push(usual);
      fs.mkdirSync(usual, 0o777);
      fs.chmodSync(usual, 0o777);
      const refused = run();
      expect(refused.create).toMatch(
        new RegExp(
          `^FOLDER_NOT_PRIVATE: .*${usual}.* belongs to user 0, and this process runs as user ${STRANGER}`,
        ),
      );
      const runtime = join('/run/user', String(STRANGER));
      // Where the system makes none of these folders, the one around it goes, too.
      paths.push(fs.mkdirSync(runtime, { recursive: true }) ?? runtime);
      fs.chmodSync(runtime, 0o700);
      fs.chownSync(runtime, STRANGER, STRANGER);
      const elsewhere = run();
      expect(elsewhere.directory).toBe(join(runtime, 'tributary'));
      expect(elsewhere.create).toBe('done');
    });
  });

  it('of an older release left segments beside the folder: those of the dead and of this user are removed', () => {
    const { startTicks, pidNamespace } = currentProcess();
    const leave = (name: string, owner: Parameters<typeof encodeHeader>[0]['owner']) => {
      const path = join(SHARED_MEMORY, `tributary-${name}-${process.pid}`);
      fs.writeFileSync(path, encodeHeader({ byteLength: 0, owner }), { mode: 0o600 });
      paths.push(path);
      return path;
    };
    const gone = { pid: process.pid, startTicks: startTicks + 1n, pidNamespace };
    const [dead, alive, others] = [
      leave('dead', gone),
      leave('alive', currentProcess()),
      leave('others', gone),
    ];
    if (isRoot) fs.chownSync(others, NOBODY, NOBODY);
    // Whoever removes at the same time holds the lock, and this one does not wait.
    for (let tries = 0; tries < 10_000 && fs.existsSync(dead); tries++) removeStaleSegments();
    expect(fs.existsSync(dead)).toBe(false);
    expect(fs.existsSync(alive)).toBe(true);
    if (isRoot) expect(fs.existsSync(others)).toBe(true);
  });
});

function isReadableByAll(path: string): boolean {
  if (path === '/') return true;
  return (fs.statSync(path).mode & 0o005) === 0o005 && isReadableByAll(join(path, '..'));
}
