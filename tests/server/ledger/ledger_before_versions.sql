BEGIN TRANSACTION;
CREATE TABLE certificates (
	serial VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	issued_at FLOAT NOT NULL, 
	not_after FLOAT NOT NULL, 
	revoked_at FLOAT, 
	PRIMARY KEY (serial), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
INSERT INTO "certificates" VALUES('serial-alice','alice',1004.0,4000000000.0,NULL);
INSERT INTO "certificates" VALUES('serial-bob','bob',1006.0,4000000000.0,NULL);
CREATE TABLE clients (
	name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	enrolled_at FLOAT NOT NULL, 
	revoked_at FLOAT, 
	PRIMARY KEY (name)
);
INSERT INTO "clients" VALUES('alice','active',1004.0,NULL);
INSERT INTO "clients" VALUES('bob','active',1006.0,NULL);
CREATE TABLE cohorts (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	client VARCHAR NOT NULL, 
	phase VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	offered_at FLOAT, 
	PRIMARY KEY (run, round, client), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number)
);
INSERT INTO "cohorts" VALUES('digits',1,'alice','reported','',1009.0);
INSERT INTO "cohorts" VALUES('digits',1,'bob','reported','',1009.0);
INSERT INTO "cohorts" VALUES('digits',2,'alice','reported','',1014.0);
INSERT INTO "cohorts" VALUES('digits',2,'bob','reported','',1014.0);
INSERT INTO "cohorts" VALUES('digits',3,'alice','reported','',1019.0);
INSERT INTO "cohorts" VALUES('digits',3,'bob','reported','',1019.0);
CREATE TABLE models (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (run, round)
);
INSERT INTO "models" VALUES('digits',0,'digits-0',100,1007.0);
INSERT INTO "models" VALUES('other',0,'other-0',100,1008.0);
INSERT INTO "models" VALUES('digits',1,'digits-1',100,1013.0);
INSERT INTO "models" VALUES('digits',2,'digits-2',100,1018.0);
CREATE TABLE refusals (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	client VARCHAR NOT NULL, 
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	code VARCHAR NOT NULL, 
	message VARCHAR NOT NULL, 
	detail VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE rounds (
	run VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	opened_at FLOAT NOT NULL, 
	deadline_at FLOAT NOT NULL, 
	closed_at FLOAT, 
	model_in VARCHAR NOT NULL, 
	model_out VARCHAR, 
	training JSON, 
	evaluation JSON, 
	privacy JSON, 
	PRIMARY KEY (run, number), 
	FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO "rounds" VALUES('digits',1,'train','committed','',1.0,60.0,1012.0,'digits-0','digits-1','{}','{}','null');
INSERT INTO "rounds" VALUES('digits',2,'train','committed','',1.0,60.0,1017.0,'digits-1','digits-2','{}','{}','null');
INSERT INTO "rounds" VALUES('digits',3,'train','reporting','',1.0,60.0,NULL,'digits-2',NULL,NULL,NULL,NULL);
CREATE TABLE runs (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	spec JSON NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	model VARCHAR NOT NULL, 
	strategy_state VARCHAR, 
	committed INTEGER NOT NULL, 
	last_round INTEGER NOT NULL, 
	abandoned_in_a_row INTEGER NOT NULL, 
	privacy JSON, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('digits','digits','{"rounds": 3}','running','',1007.0,NULL,'digits-2','{"step": 2}',2,3,0,NULL);
INSERT INTO "runs" VALUES('other','other','{"rounds": 3}','running','',1008.0,NULL,'other-0','{"step": 0}',0,0,0,NULL);
CREATE TABLE tokens (
	id VARCHAR NOT NULL, 
	secret_hash VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	used_at FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "tokens" VALUES('alice','hash','alice',1003.0,4000000000.0,1004.0);
INSERT INTO "tokens" VALUES('bob','hash','bob',1005.0,4000000000.0,1006.0);
CREATE TABLE updates (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	client VARCHAR NOT NULL, 
	identity VARCHAR NOT NULL, 
	file VARCHAR NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	weight FLOAT NOT NULL, 
	norm FLOAT NOT NULL, 
	training JSON NOT NULL, 
	evaluation JSON NOT NULL, 
	accepted_at FLOAT NOT NULL, 
	counts_in INTEGER, 
	staleness INTEGER, 
	PRIMARY KEY (run, round, client), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number)
);
INSERT INTO "updates" VALUES('digits',1,'alice','alice','1.alice',10,1.0,0.5,'{}','{}',1010.0,1,0);
INSERT INTO "updates" VALUES('digits',1,'bob','bob','1.bob',10,1.0,0.5,'{}','{}',1011.0,1,0);
INSERT INTO "updates" VALUES('digits',2,'alice','alice','2.alice',10,1.0,0.5,'{}','{}',1015.0,2,0);
INSERT INTO "updates" VALUES('digits',2,'bob','bob','2.bob',10,1.0,0.5,'{}','{}',1016.0,2,0);
INSERT INTO "updates" VALUES('digits',3,'alice','alice','3.alice',10,1.0,0.5,'{}','{}',1020.0,3,0);
INSERT INTO "updates" VALUES('digits',3,'bob','bob','3.bob',10,1.0,0.5,'{}','{}',1021.0,3,0);
CREATE INDEX ix_refusals_code ON refusals (code);
CREATE INDEX ix_models_digest ON models (digest);
CREATE INDEX ix_certificates_client ON certificates (client);
COMMIT;
