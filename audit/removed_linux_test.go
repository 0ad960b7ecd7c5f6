package audit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// A removedBlock is a block of the file of what was removed, found by its head alone.
type removedBlock struct {
	at, notes, tree, end int // notes and tree: where they begin
}

func removedBlocks(content []byte) (all []removedBlock) {
	for at := 0; at < len(content); {
		var number, notes, tree int
		if _, err := fmt.Sscanf(string(content[at:]), "%d %d %d\n", &number, &notes, &tree); err != nil || number != len(all)+1 {
			panic(fmt.Sprintf("block %d: %v", len(all)+1, err))
		}
		begin := at + bytes.IndexByte(content[at:], '\n') + 1
		all = append(all, removedBlock{at, begin, begin + notes, begin + notes + tree})
		at = begin + notes + tree
	}
	return all
}

// removedSegments is how many of the first segments have both files of what is left of
// one.
func removedSegments(files map[string][]byte) (n int) {
	for files[fileName(n+1, ".ckpt")] != nil && files[fileName(n+1, ".tree")] != nil {
		n++
	}
	return n
}

// packFiles puts the files of the first segments, so many, into one, and keeps those
// of the last ones of them, so many.
func packFiles(files map[string][]byte, n, keep int) map[string][]byte {
	packed := maps.Clone(files)
	var content []byte
	for number := 1; number <= n; number++ {
		notes, tree := files[fileName(number, ".ckpt")], files[fileName(number, ".tree")]
		content = fmt.Appendf(content, "%d %d %d\n%s%s", number, len(notes), len(tree), notes, tree)
		if number <= n-keep {
			delete(packed, fileName(number, ".ckpt"))
			delete(packed, fileName(number, ".tree"))
		}
	}
	if n > 0 {
		packed[format.RemovedName] = content
	}
	return packed
}

// unpackFiles is the other way round.
func unpackFiles(files map[string][]byte) map[string][]byte {
	unpacked := maps.Clone(files)
	content := files[format.RemovedName]
	for i, b := range removedBlocks(content) {
		unpacked[fileName(i+1, ".ckpt")] = content[b.notes:b.tree]
		unpacked[fileName(i+1, ".tree")] = content[b.tree:b.end]
	}
	delete(unpacked, format.RemovedName)
	return unpacked
}

// unpack has every segment that was removed have files of its own.
func unpack(t *testing.T, dir string) {
	t.Helper()
	files := (&signedLog{dir: dir}).files(t)
	for name, content := range unpackFiles(files) {
		writeFile(t, filepath.Join(dir, name), content)
	}
	if err := os.Remove(format.RemovedPath(dir)); files[format.RemovedName] != nil && err != nil {
		t.Fatal(err)
	}
}

// TestWhatIsRemovedIsInOneFile: however much was removed, the folder has the files of
// what is there, and two or three more.
func TestWhatIsRemovedIsInOneFile(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 200, Retain: Retain{Segments: 2}, Trouble: func(err error) { t.Error(err) }})
	if n := removed(t, s.dir); n < 8 {
		t.Fatalf("%d segments were removed", n)
	}
	if files := s.files(t); len(files) > 5 || files[format.RemovedName] == nil {
		t.Errorf("the folder holds %q", slices.Sorted(maps.Keys(files)))
	}
	if r := s.verify(t, s.anchors...); r.Code != verify.Good || r.Records != 30 || r.Unvouched != 0 {
		t.Errorf("%+v", r)
	}
}

// TestALogOfManyFilesIsPacked has what earlier versions have left, and retention that
// removes nothing more.
func TestALogOfManyFilesIsPacked(t *testing.T) {
	o := Options{SegmentBytes: 200, Retain: Retain{Segments: 2}, Trouble: func(err error) { t.Error(err) }}
	s := signed(t, o)
	before := removed(t, s.dir)
	unpack(t, s.dir)
	if n := len(s.files(t)); n < 2*before {
		t.Fatalf("%d files", n)
	}
	closeLog(t, open(t, s.dir, o))
	if files := s.files(t); len(files) > 7 || removed(t, s.dir) != before {
		t.Errorf("the folder holds %q", slices.Sorted(maps.Keys(files)))
	}
	if r := s.verify(t, s.anchors...); r.Code != verify.Good {
		t.Errorf("%+v", r)
	}
}

// TestPackingGoesOnAfterACrash begins with all that a crash can leave: a block that is
// cut anywhere or whole, with the files that it is made of, and only some of them
// removed.
func TestPackingGoesOnAfterACrash(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400, Retain: Retain{Segments: 2}})
	all := unpackFiles(s.files(t))
	n := removedSegments(all)
	whole := packFiles(all, n, 1)
	blocks := removedBlocks(whole[format.RemovedName])
	var states []map[string][]byte
	for _, at := range []int{0, 1, blocks[n-1].at + 3, blocks[n-1].notes, blocks[n-1].tree, blocks[n-1].end - 1, blocks[n-1].end} {
		state := maps.Clone(packFiles(all, n, n)) // no block counts yet
		if at >= blocks[n-1].at {
			state = maps.Clone(whole)
		}
		state[format.RemovedName] = state[format.RemovedName][:at]
		states = append(states, state)
	}
	for _, left := range []string{fileName(n, ".ckpt"), fileName(n, ".tree"), fileName(n-1, ".ckpt")} {
		state := packFiles(all, n, 0)
		state[left] = all[left]
		states = append(states, state)
	}
	for i, state := range states {
		lay(t, s.dir, state)
		if r := s.verify(t, s.anchors...); r.Code != verify.Good {
			t.Errorf("state %d: %+v", i, r)
		}
		l := open(t, s.dir, Options{Retain: Retain{Segments: 2}, Trouble: func(err error) { t.Errorf("state %d: %v", i, err) }})
		l.signing.Lock()
		files, err := format.ListFiles(s.dir)
		err = errors.Join(err, l.past.Read())
		l.signing.Unlock()
		if err != nil || len(files.Trees) > 1 || len(l.past.Blocks) < n-1 {
			t.Errorf("state %d: %v is left, %d blocks: %v", i, files, len(l.past.Blocks), err)
		}
		closeLog(t, l)
		if r := s.verify(t, s.anchors...); r.Code != verify.Good {
			t.Errorf("state %d, packed: %+v", i, r)
		}
	}
}

// lay makes the files of a log those.
func lay(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name := range (&signedLog{dir: dir}).files(t) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		writeFile(t, filepath.Join(dir, name), content)
	}
}

// TestWhatIsDamagedIsNotPacked: files that differ from their block, and bytes that no
// crash leaves, stay as evidence.
func TestWhatIsDamagedIsNotPacked(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400, Retain: Retain{Segments: 2}})
	all := unpackFiles(s.files(t))
	n := removedSegments(all)
	other := packFiles(all, n, 0)
	other[fileName(1, ".ckpt")] = append(bytes.Clone(all[fileName(1, ".ckpt")]), 'x')
	behind := packFiles(all, n, 0)
	behind[format.RemovedName] = append(behind[format.RemovedName], 'x')
	for name, files := range map[string]map[string][]byte{"a file that differs": other, "bytes behind the blocks": behind} {
		lay(t, s.dir, files)
		var trouble error
		l := open(t, s.dir, Options{Retain: Retain{Segments: 2}, Trouble: func(err error) { trouble = errors.Join(trouble, err) }})
		var damage *format.DamageError
		if !errors.As(trouble, &damage) {
			t.Errorf("%s: %v", name, trouble)
		}
		closeLog(t, l)
		now := s.files(t)
		if !bytes.Equal(now[format.RemovedName], files[format.RemovedName]) || !bytes.Equal(now[fileName(1, ".ckpt")], files[fileName(1, ".ckpt")]) {
			t.Errorf("%s: it was changed", name)
		}
		if r := s.verify(t); r.Code != verify.Tampered {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The ways of changing the file of what was removed.
var removedKinds = []struct {
	name string
	make func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation
}{
	{"nothing", func(s *specimen, r *rand.Rand, _ []removedBlock) *mutation {
		return s.changed(s.code, -1, "packed")
	}},
	{"a bit", flipRemoved},
	{"cut", func(s *specimen, r *rand.Rand, _ []removedBlock) *mutation {
		at := r.IntN(len(s.files[format.RemovedName]))
		s.files[format.RemovedName] = s.files[format.RemovedName][:at]
		return s.changed(verify.Tampered, -1, "at %d", at)
	}},
	{"cut, with the files of the last block", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		all, b := unpackFiles(s.files), last(blocks)
		at := b.at + r.IntN(b.end-b.at)
		s.files = packFiles(all, len(blocks), 1)
		s.files[format.RemovedName] = s.files[format.RemovedName][:at]
		return s.changed(s.code, -1, "at %d", at)
	}},
	{"gone", func(s *specimen, _ *rand.Rand, _ []removedBlock) *mutation {
		delete(s.files, format.RemovedName)
		return s.changed(verify.Tampered, -1, "")
	}},
	{"empty", func(s *specimen, _ *rand.Rand, _ []removedBlock) *mutation {
		s.files[format.RemovedName] = nil
		return s.changed(verify.Tampered, -1, "")
	}},
	{"bytes behind", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		content := s.files[format.RemovedName]
		behind := pick(r, []string{"x", "\n", fmt.Sprintf("%d 0 9\n", len(blocks)+1), string(content[:blocks[0].end])})
		s.files[format.RemovedName] = append(content, behind...)
		return s.changed(verify.Tampered, -1, "%q", behind[:1])
	}},
	{"an empty block more", func(s *specimen, _ *rand.Rand, blocks []removedBlock) *mutation {
		s.files[format.RemovedName] = fmt.Appendf(s.files[format.RemovedName], "%d 0 0\n", len(blocks)+1)
		return s.changed(s.code, -1, "its segment has its files")
	}},
	{"two blocks swapped", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		if len(blocks) < 2 {
			return nil
		}
		i := r.IntN(len(blocks) - 1)
		a, b, content := blocks[i], blocks[i+1], s.files[format.RemovedName]
		swapped := slices.Concat(content[:a.at], content[b.at:b.end], content[a.at:a.end], content[b.end:])
		s.files[format.RemovedName] = swapped
		return s.changed(verify.Tampered, -1, "%d", i+1)
	}},
	{"the contents of two blocks swapped", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		if len(blocks) < 2 {
			return nil
		}
		all, i := unpackFiles(s.files), 1+r.IntN(len(blocks)-1)
		kind := pick(r, []string{".ckpt", ".tree"})
		all[fileName(i, kind)], all[fileName(i+1, kind)] = all[fileName(i+1, kind)], all[fileName(i, kind)]
		s.files = packFiles(all, len(blocks), 0)
		want := verify.Tampered
		if i == 1 && kind == ".ckpt" {
			want = verify.Unknown
		}
		return s.changed(want, -1, "%s of %d", kind, i)
	}},
	{"a block removed", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		b := pick(r, blocks)
		s.files[format.RemovedName] = slices.Delete(s.files[format.RemovedName], b.at, b.end)
		return s.changed(verify.Tampered, -1, "at %d", b.at)
	}},
	{"a block twice", func(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
		b, content := pick(r, blocks), s.files[format.RemovedName]
		s.files[format.RemovedName] = slices.Insert(content, b.end, bytes.Clone(content[b.at:b.end])...)
		return s.changed(verify.Tampered, -1, "at %d", b.at)
	}},
	{"all the rest gone", func(s *specimen, _ *rand.Rand, _ []removedBlock) *mutation {
		s.files = map[string][]byte{format.RemovedName: s.files[format.RemovedName]}
		return s.changed(verify.Truncated, -1, "")
	}},
}

// flipRemoved flips a bit: what is due is what would be due in a file.
func flipRemoved(s *specimen, r *rand.Rand, blocks []removedBlock) *mutation {
	at, bit := r.IntN(len(s.files[format.RemovedName])), r.IntN(8)
	if r.IntN(3) == 0 { // in a head
		b := pick(r, blocks)
		at = b.at + r.IntN(b.notes-b.at)
	}
	for i, b := range blocks {
		if at >= b.end || at < b.notes {
			continue
		}
		files := s.copy("")
		files.files = unpackFiles(s.files)
		var m *mutation
		if at < b.tree {
			m = files.flipNoteAt(fileName(i+1, ".ckpt"), at-b.notes, bit)
		} else {
			m = files.flipTreeAt(fileName(i+1, ".tree"), at-b.tree, bit)
		}
		m.files = packFiles(m.files, len(blocks), 0)
		return m
	}
	s.files[format.RemovedName][at] ^= 1 << bit
	return s.changed(verify.Tampered, -1, "bit %d of byte %d", bit, at)
}

// packSome packs a part of what is left of removed segments, which changes nothing.
func (m *mutation) packSome(r *rand.Rand) {
	if n := removedSegments(m.files); n > 0 {
		n = r.IntN(n + 1)
		m.files = packFiles(m.files, n, r.IntN(n+1))
		m.name += fmt.Sprintf(", %d packed", n)
	}
}

// TestBothVerifiersAgreeAboutWhatWasRemoved changes the file of what was removed.
func TestBothVerifiersAgreeAboutWhatWasRemoved(t *testing.T) {
	retained, j := specimens(t)[2], newJudge(t)
	n := 25
	if mutations := os.Getenv(mutationsVariable); mutations != "" {
		n = 400
	}
	random := rand.New(rand.NewPCG(2, uint64(n)))
	for _, kind := range removedKinds {
		for i := range n {
			s := retained.copy("")
			s.files = packFiles(s.files, removedSegments(s.files), 0)
			m := kind.make(s, random, removedBlocks(s.files[format.RemovedName]))
			if m == nil {
				continue
			}
			m.name = kind.name + ": " + m.name
			j.judge(t, m)
			if !strings.Contains(kind.name, "bit") && !strings.Contains(kind.name, "cut") && i == 3 {
				break
			}
		}
	}
	t.Logf("%d logs", j.n)
}

// TestTheVectorOfTheDocumentIsPacked has the log of docs/reference/audit-format.md without its
// first segment, in the form that the page names.
func TestTheVectorOfTheDocumentIsPacked(t *testing.T) {
	page := string(readFile(t, filepath.Join("..", "docs", "reference", "audit-format.md")))
	files := map[string][]byte{}
	for _, b := range regexp.MustCompile("(?s)`(0000000[12]\\.(?:log|ckpt|tree))`(?: is)?\n\n```\n(.*?\n)```\n").FindAllStringSubmatch(page, -1) {
		files[b[1]] = []byte(b[2])
	}
	delete(files, fileName(1, ".log"))
	files = packFiles(files, 1, 0)
	head, _, _ := bytes.Cut(files[format.RemovedName], []byte("\n"))
	if !strings.Contains(page, fmt.Sprintf("begins with `%s`", head)) {
		t.Errorf("the page does not have the head %s", head)
	}
	s := &signedLog{dir: t.TempDir(), key: regexp.MustCompile(`egressd/00112233445566778899aabbccddeeff\+ba249c37\+\S+`).FindString(page)}
	lay(t, s.dir, files)
	if r := s.verify(t); r.Code != verify.Good || r.Removed != 1 || r.Records != 4 {
		t.Errorf("%+v", r)
	}
}
