// Package witness is a witness of logs (C2SP tlog-witness), for tests. It holds what it
// knows in memory and shares no code with what asks it.
//
//	w := witness.New()
//	server := httptest.NewServer(w)
//	w.Trust(key)
package witness

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A Witness cosigns the checkpoints of one log. It is safe for concurrent use.
type Witness struct {
	name string
	key  ed25519.PrivateKey

	mu      sync.Mutex
	trust   string // the key of the log
	size    int64
	root    tlog.Hash
	asked   []int // the status of each answer
	instead http.HandlerFunc
}

// New returns a Witness that knows no log.
func New() *Witness {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err) // never fails, see crypto/rand
	}
	return &Witness{name: "witness.test/1", key: key}
}

// Trust has it know one log, by this key.
func (w *Witness) Trust(key string) { w.set(func() { w.trust = key }) }

// Forget has it not know any more what it has cosigned.
func (w *Witness) Forget() { w.set(func() { w.size = 0 }) }

// Instead has f answer in its place, until it is nil.
func (w *Witness) Instead(f http.HandlerFunc) { w.set(func() { w.instead = f }) }

func (w *Witness) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *Witness) id() []byte {
	sum := sha256.Sum256(append([]byte(w.name+"\n\x04"), w.key.Public().(ed25519.PublicKey)...))
	return sum[:4]
}

// Public returns its public key.
func (w *Witness) Public() string {
	return fmt.Sprintf("%s+%x+%s", w.name, w.id(), base64.StdEncoding.EncodeToString(append([]byte{4}, w.key.Public().(ed25519.PublicKey)...)))
}

// ServeHTTP answers a request to add a checkpoint.
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	instead := w.instead
	w.mu.Unlock()
	if instead != nil {
		instead(rw, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	status, answer := http.StatusBadRequest, ""
	if err == nil && r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/add-checkpoint") {
		status, answer = w.add(string(body))
	}
	if status == http.StatusConflict {
		rw.Header().Set("Content-Type", "text/x.tlog.size")
	}
	rw.WriteHeader(status)
	io.WriteString(rw, answer)
}

// add judges a request in the order of the specification.
func (w *Witness) add(body string) (status int, answer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.asked = append(w.asked, status) }()
	head, checkpoint, ok := strings.Cut(body, "\n\n")
	lines := strings.Split(head, "\n")
	old, err := strconv.ParseInt(strings.TrimPrefix(lines[0], "old "), 10, 64)
	if !ok || err != nil || lines[0] != fmt.Sprint("old ", old) || len(lines) > 64 {
		return http.StatusBadRequest, ""
	}
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			return http.StatusBadRequest, ""
		}
		proof = append(proof, h)
	}
	origin, _, _ := strings.Cut(checkpoint, "\n")
	if !strings.HasPrefix(w.trust, origin+"+") {
		return http.StatusNotFound, ""
	}
	v, err := note.NewVerifier(w.trust)
	if err != nil {
		return http.StatusInternalServerError, ""
	}
	n, err := note.Open([]byte(checkpoint), note.VerifierList(v))
	if err != nil {
		return http.StatusForbidden, ""
	}
	fields := strings.Split(n.Text, "\n")
	size, _ := strconv.ParseInt(fields[1], 10, 64)
	root, err := tlog.ParseHash(fields[2])
	if err != nil {
		return http.StatusBadRequest, ""
	}
	return w.extend(old, size, root, proof, n.Text)
}

func (w *Witness) extend(old, size int64, root tlog.Hash, proof tlog.TreeProof, text string) (int, string) {
	switch {
	case old > size:
		return http.StatusBadRequest, ""
	case old != w.size, old == size && w.size > 0 && root != w.root:
		return http.StatusConflict, fmt.Sprintf("%d\n", w.size)
	case old == 0 || old == size:
		if len(proof) > 0 {
			return http.StatusUnprocessableEntity, ""
		}
	case tlog.CheckTree(proof, size, root, old, w.root) != nil:
		return http.StatusUnprocessableEntity, ""
	}
	w.size, w.root = size, root
	return http.StatusOK, "— someone.test AAAAAAAA\n" + w.cosign(text, time.Now().Unix())
}

func (w *Witness) cosign(text string, at int64) string {
	b := binary.BigEndian.AppendUint64(w.id(), uint64(at))
	b = append(b, ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text))...)
	return "— " + w.name + " " + base64.StdEncoding.EncodeToString(b) + "\n"
}

// Answers returns how often it has answered with a status.
func (w *Witness) Answers(status int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.asked {
		if s == status {
			n++
		}
	}
	return n
}

// Size returns how many records it has cosigned.
func (w *Witness) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}
