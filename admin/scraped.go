package admin

import (
	"net/http"

	"github.com/egressd/egressd/internal/recovered"
)

// Scraped lets a program on another machine read the metrics, and nothing else of what operators can.
type Scraped struct {
	// Token returns the Bearer token that a request has to show, or "" for none: the listener asks for a certificate then.
	Token func() string
}

// handler answers everything itself: nothing of the operator's listener is here.
func (sc *Scraped) handler(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer recovered.Log("answering with metrics", func() {
			fail(w, http.StatusInternalServerError, "the request failed", "egressd's standard error")
		})
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		v, is := r.Context().Value(connectionKey{}).(*connection)
		if !is {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
		switch token := sc.Token(); {
		case fromBrowser(r.Header):
			s.refuse(w, r, v, http.StatusForbidden, "a request of a page in a browser", "curl")
		case token != "" && !hasToken(r.Header, token):
			w.Header().Set("WWW-Authenticate", `Bearer realm="egressd"`)
			s.refuse(w, r, v, http.StatusUnauthorized, "a request for metrics without the token", "Authorization: Bearer TOKEN, with the token of metrics.token_file")
		case r.Method != http.MethodGet || r.URL.Path != "/metrics":
			v.proven.Store(true)
			fail(w, http.StatusNotFound, "here are metrics alone", "GET /metrics")
		default:
			v.proven.Store(true)
			s.metrics(w, r)
		}
	})
}
