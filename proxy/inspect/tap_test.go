package inspect

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// TestFramesOfAnUpstreamArePassedOnButForTheirSize reads frames in pieces of any size.
func TestFramesOfAnUpstreamArePassedOnButForTheirSize(t *testing.T) {
	written := func(size uint32) []byte {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		looksLike := []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 16, 0, 0}
		f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: size}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: size})
		f.WriteSettingsAck()
		f.WriteData(1, false, looksLike)
		f.WriteData(1, false, nil)
		f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: size})
		f.WriteWindowUpdate(0, size)
		return b.Bytes()
	}
	const large = 1 << 20
	for piece := 1; piece < 40; piece++ {
		upstream, b := tapUpstream(nil, nil), written(large)
		for part := range slices.Chunk(b, piece) {
			upstream.in.see(part)
		}
		expectFrames(t, b, written(large))
	}
}

// expectFrames compares what was passed on with what was sent.
func expectFrames(t *testing.T, passed, sent []byte) {
	t.Helper()
	if len(passed) != len(sent) {
		t.Fatalf("%d bytes of %d", len(passed), len(sent))
	}
	p, s := http2.NewFramer(nil, bytes.NewReader(passed)), http2.NewFramer(nil, bytes.NewReader(sent))
	for {
		was, err := s.ReadFrame()
		if err == io.EOF {
			return
		}
		is, errIs := p.ReadFrame()
		if err != nil || errIs != nil {
			t.Fatal(err, errIs)
		}
		if is.Header() != was.Header() && is.Header().String() != was.Header().String() {
			t.Fatalf("%v, where %v was sent", is, was)
		}
		switch was := was.(type) {
		case *http2.SettingsFrame:
			was.ForeachSetting(func(setting http2.Setting) error {
				hidden := setting.ID == http2.SettingMaxFrameSize
				if got, ok := is.(*http2.SettingsFrame).Value(setting.ID); ok == hidden || ok && got != setting.Val {
					t.Errorf("%v is %d (%v), where %d was sent", setting.ID, got, ok, setting.Val)
				}
				return nil
			})
		case *http2.DataFrame:
			if !bytes.Equal(was.Data(), is.(*http2.DataFrame).Data()) {
				t.Error("what looks like settings was changed")
			}
		}
	}
}
