package stage

var Usual = usual
