package sink

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/logs/export"
)

// A Witness cosigns checkpoints (C2SP tlog-witness) after a proof that the log has only grown since the
// previous one. Its cosignatures are stored in the folder of the log.
type Witness struct {
	URL string // of the witness, without "/add-checkpoint"
	Key string // public key that verifies its cosignatures

	// Every is the minimum time between two checkpoints; 0 means ten seconds.
	Every time.Duration

	// Roots are the authorities for TLS; nil means those of the system.
	Roots *x509.CertPool
}

const (
	witnessEvery = 10 * time.Second

	// cosignAgain is the maximum age of the cosignature of an idle log. Only a recent cosignature shows
	// that nothing was cut off since.
	cosignAgain = time.Hour
)

func (w *Witness) same(other *Witness) bool {
	a, b := *w, *other
	a.Roots, b.Roots = nil, nil
	return a == b && sameRoots(w.Roots, other.Roots)
}

// CheckWitnesses reports configuration errors that can be found without a connection.
func CheckWitnesses(witnesses []Witness) error {
	for i := range witnesses {
		if _, err := newWitnessTarget(&witnesses[i], "", "", export.Origin{}, nil); err != nil {
			return fmt.Errorf("witness %s: %w", witnesses[i].URL, err)
		}
	}
	return nil
}

// A witnessTarget sends checkpoints to one witness.
type witnessTarget struct {
	url      string
	key      verify.WitnessKey
	dir      string // of the log
	keys     string // folder of the log's keys
	agent    string
	client   *http.Client
	onNotice func(string)
	prover   verify.Prover
	signer   *audit.Identity // nil until first used
	known    int64           // last known size of the witness's checkpoint
}

func newWitnessTarget(w *Witness, dir, keys string, from export.Origin, onNotice func(string)) (*witnessTarget, error) {
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the url is none; write https://witness.example.com or the like")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the url holds more than a host and a path")
	}
	key, err := verify.ParseWitnessKey(w.Key)
	if err != nil {
		return nil, fmt.Errorf("its key: %w", err)
	}
	return &witnessTarget{
		url: strings.TrimSuffix(w.URL, "/") + "/add-checkpoint", key: key, dir: dir, keys: keys,
		agent: "egressd/" + from.Version, client: newClient(w.Roots), onNotice: onNotice, prover: verify.Prover{Dir: dir},
	}, nil
}

// maxAsks is the number of requests for one checkpoint before a pause. Another process may submit
// checkpoints of the same log.
const maxAsks = 4

// send has a checkpoint cosigned. If the witness knows a newer one of this log, send submits the newest.
func (w *witnessTarget) send(ctx context.Context, b *batch) error {
	note := b.entries[0].Text
	origin, size, err := verify.CheckpointSize(note)
	if err != nil {
		return err
	}
	if err := w.identify(origin); err != nil {
		return err
	}
	for range maxAsks {
		old := w.known
		if old > size {
			old = 0 // the witness answers with its actual size
		}
		has, err := w.ask(ctx, old, note)
		if err != nil || has < 0 {
			return err
		}
		w.known = has
		if has == old {
			return fmt.Errorf("the witness has another log of %d records: this one is not the log that it has cosigned", has)
		}
		if has > size {
			if note, size, err = w.newer(has); err != nil {
				return err
			}
		}
	}
	return errors.New("the witness has another checkpoint each time that it is asked")
}

// identify loads or creates the key by which the witness knows the log.
func (w *witnessTarget) identify(origin string) error {
	if w.signer != nil {
		return nil
	}
	signer, made, err := audit.OpenIdentity(w.dir, w.keys, origin)
	if err != nil {
		return err
	}
	w.signer = signer
	if made {
		w.onNotice("witnesses have to know this log by its key for them: " + signer.Public())
	}
	return nil
}

// newer returns the newest checkpoint of the log. It returns an error if that covers fewer records than
// the witness has cosigned.
func (w *witnessTarget) newer(has int64) ([]byte, int64, error) {
	note, err := verify.NewestCheckpoint(w.dir)
	if err != nil {
		return nil, 0, err
	}
	_, size, err := verify.CheckpointSize(note)
	if err == nil && size < has {
		err = fmt.Errorf("the witness has cosigned %d records of this log, and it has %d: it was cut off, or put back to an earlier state", has, size)
	}
	return note, size, err
}

// ask submits a checkpoint with the proof from size old. It returns -1 if the witness has cosigned it, and
// otherwise the size that the witness has.
func (w *witnessTarget) ask(ctx context.Context, old int64, note []byte) (has int64, err error) {
	proof, err := w.prover.Prove(old, note)
	if err != nil {
		return 0, fmt.Errorf("prove that the log has only grown from %d records: %w", old, err)
	}
	signed, err := w.signer.Sign(note)
	if err != nil {
		return 0, err
	}
	var body bytes.Buffer
	fmt.Fprintf(&body, "old %d\n", old)
	for _, line := range proof {
		body.WriteString(line + "\n")
	}
	body.WriteString("\n")
	body.Write(signed)
	response, answer, err := w.post(ctx, &body)
	if err != nil {
		return 0, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return -1, w.keep(note, answer)
	case http.StatusConflict:
		return sizeOf(response, answer)
	}
	return 0, w.refused(response, old)
}

func (w *witnessTarget) post(ctx context.Context, body io.Reader) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, "POST", w.url, body)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	request.Header.Set("User-Agent", w.agent)
	return exchange(w.client, request)
}

// keep stores the cosigned checkpoint with only the log's own signature beside the cosignature.
func (w *witnessTarget) keep(note, answer []byte) error {
	cosigned, c, err := w.key.Cosigned(note, answer)
	if err != nil {
		return fmt.Errorf("the witness's answer: %w", err)
	}
	w.known = c.Size
	if err := verify.SaveCosigned(w.dir, w.key, cosigned); err != nil {
		return fmt.Errorf("keep what the witness has cosigned: %w", err)
	}
	return nil
}

// sizeOf reads the size of the witness's checkpoint from an answer with status 409.
func sizeOf(response *http.Response, answer []byte) (int64, error) {
	text, ends := strings.CutSuffix(string(answer), "\n")
	size, err := strconv.ParseInt(text, 10, 64)
	if response.Header.Get("Content-Type") != "text/x.tlog.size" || !ends || err != nil || size < 0 || strconv.FormatInt(size, 10) != text {
		return 0, errors.New("the witness answered 409 and not which checkpoint it has")
	}
	return size, nil
}

// refused converts an answer without a cosignature to an error.
func (w *witnessTarget) refused(response *http.Response, old int64) error {
	switch response.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("the witness answered 404: it does not know this log; have its operator add %s", w.signer.Public())
	case http.StatusForbidden:
		return fmt.Errorf("the witness answered 403: it knows this log by another key than %s", w.signer.Public())
	case http.StatusUnprocessableEntity:
		return fmt.Errorf("the witness answered 422: this is not the log of which it has cosigned %d records", old)
	}
	return later(response, fmt.Errorf("the witness answered %d", response.StatusCode))
}

func (w *witnessTarget) life() context.Context { return context.Background() }
func (w *witnessTarget) unsure() int64         { return 0 }
func (w *witnessTarget) close()                { w.client.CloseIdleConnections() }
