PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE audit (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at FLOAT NOT NULL, 
	who TEXT NOT NULL, 
	role TEXT NOT NULL, 
	act TEXT NOT NULL, 
	what TEXT NOT NULL, 
	outcome TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,14.5,'alice','operator','submit','r1','done');
CREATE TABLE events (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at FLOAT NOT NULL, 
	run TEXT NOT NULL, 
	event_json TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,13.5,'r1','{"event": "round_started"}');
CREATE TABLE format (number INTEGER NOT NULL);
INSERT INTO "format" VALUES(2);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	config_yaml TEXT NOT NULL, 
	interactive BOOLEAN NOT NULL, 
	state TEXT NOT NULL, 
	restarts INTEGER NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, 
	digest TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	folder TEXT NOT NULL, 
	shared BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('r1','digits','alice','rounds: 3
',0,'submitted',0,1.70000000012345600132e+09,NULL,NULL,'','','/runs/r1',0);
CREATE TABLE sites (
	name TEXT NOT NULL, 
	wish TEXT NOT NULL, 
	state TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	reason TEXT NOT NULL, 
	first_joined FLOAT NOT NULL, 
	agent TEXT NOT NULL, 
	version TEXT NOT NULL, 
	data_json TEXT NOT NULL, 
	removed BOOLEAN NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "sites" VALUES('paris','open','ready',12.25,'it has joined',10.125,'a1','0.1.0','{"name": "été"}',0);
CREATE TABLE tokens (
	digest TEXT NOT NULL, 
	site TEXT NOT NULL, 
	made_by TEXT NOT NULL, 
	made_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	used_at FLOAT, 
	PRIMARY KEY (digest)
);
CREATE TABLE traffic (
	run TEXT NOT NULL, 
	round INTEGER NOT NULL, 
	site TEXT NOT NULL, 
	direction TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	bytes INTEGER NOT NULL, 
	PRIMARY KEY (run, round, site, direction, purpose)
);
CREATE INDEX ix_tokens_site ON tokens (site);
CREATE INDEX ix_runs_state ON runs (state);
CREATE INDEX events_of_run ON events (run, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1);
INSERT INTO "sqlite_sequence" VALUES('audit',1);
COMMIT;
